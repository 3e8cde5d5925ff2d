"""How long a step takes: medians over repeats for the clock, kernels' intervals for what the GPU does.

Not here: what is timed. Every number is of this rank; the caller decides whose to report.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

LEAD_IN = 2
"""Steps of a repeat before its clock runs: the first after a wait finds the GPU idle while the host prepares, and its next batch not yet on its way.
Computed (2026-11-30): about 0.5 % of 40 steps of 0.9 ms; of two steps of plan 4, whose host works 8.6 ms, 4.3 of 22 ms a step."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Milliseconds a step over repeats."""

    ms: float
    """Median."""
    low_ms: float
    high_ms: float
    host_ms: float
    """Median time the host needs to enqueue a step, waiting for a full queue included."""
    joules: float
    """Of this rank's GPU, a step; 0 where NVML does not tell."""
    repeats: int
    steps: int


def time_steps(step: Callable[[], object], *, steps: int = 40, repeats: int = 5, warm_up: int = 8) -> Timing:
    """Times `step` as one of many, on the GPU's own clock; all ranks start each repeat together. Collective."""
    for _ in range(warm_up):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    totals, hosts = [], []
    energy_before = _millijoules()
    for _ in range(repeats):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        for _ in range(LEAD_IN):
            step()
        begin.record()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        end.record()
        hosts.append((time.perf_counter() - began) / steps * 1e3)
        torch.cuda.synchronize()
        totals.append(begin.elapsed_time(end) / steps)
    joules = (_millijoules() - energy_before) / 1e3 / (repeats * (LEAD_IN + steps))
    return Timing(
        ms=round(statistics.median(totals), 4),
        low_ms=round(min(totals), 4),
        high_ms=round(max(totals), 4),
        host_ms=round(statistics.median(hosts), 4),
        joules=round(joules, 4),
        repeats=repeats,
        steps=steps,
    )


def _millijoules() -> float:
    """Energy this GPU has used since the driver was loaded."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except Exception:  # a driver or container without NVML: the other figures stand
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel or copy of a profiled step."""

    start_us: float
    us: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Busy:
    """What the GPU does in a step."""

    busy_ms: float
    """Time in which at least one kernel or copy runs."""
    sum_ms: float
    """Kernels' own time, parallel ones counted each."""
    kernels: int
    timeline: tuple[Kernel, ...]
    """The kernels of one step in order of their start."""


def profile_steps(step: Callable[[], object], *, steps: int = 6) -> Busy:
    """Profiles some steps and describes the one in the middle."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = sorted(
        (
            Kernel(start_us=event.time_range.start, us=event.time_range.end - event.time_range.start, name=event.name)
            for event in profiler.events() or []
            if event.device_type == torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # where the profiler has it
        ),
        key=lambda kernel: kernel.start_us,
    )
    each = max(1, len(events) // steps)
    middle = events[each * (steps // 2) : each * (steps // 2 + 1)]
    zero = middle[0].start_us if middle else 0.0
    timeline = tuple(Kernel(start_us=k.start_us - zero, us=k.us, name=k.name) for k in middle)
    return Busy(
        busy_ms=round(union_us(events) / steps / 1e3, 4),
        sum_ms=round(sum(kernel.us for kernel in events) / steps / 1e3, 4),
        kernels=each,
        timeline=timeline,
    )


def union_us(kernels: Sequence[Kernel]) -> float:
    """Length of the union of the kernels' intervals; they are sorted by start."""
    total, end = 0.0, float("-inf")
    for kernel in kernels:
        stop = kernel.start_us + kernel.us
        if stop > end:
            total += stop - max(kernel.start_us, end)
            end = stop
    return total


def totals_by_name(timeline: Sequence[Kernel]) -> list[tuple[str, int, float]]:
    """(name, count, microseconds) of a timeline, costly first."""
    found: dict[str, list[float]] = {}
    for kernel in timeline:
        found.setdefault(kernel.name, []).append(kernel.us)
    return sorted(((name, len(us), sum(us)) for name, us in found.items()), key=lambda row: -row[2])


def versions() -> dict[str, Any]:
    """What a result depends on."""
    import fbgemm_gpu
    import torchrec
    import triton

    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "torchrec": torchrec.__version__,
        "fbgemm": getattr(fbgemm_gpu, "__version__", ""),
        "triton": triton.__version__,
    }
