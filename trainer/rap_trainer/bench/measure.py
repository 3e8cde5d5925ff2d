"""How much of a case is measured, and what one measurement holds: fewer steps where a step is slow, on all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rap_trainer.bench.timing import Busy, Kernel, profile_steps, time_steps, totals_by_name

MOST_STEPS = 40
"""Steps of a repeat where time allows (the baselines' definition)."""
WARM_UP = 8
PROFILED = 6


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a case may cost."""

    seconds: float
    """Of the repeats together."""
    repeats: int = 5
    equal_steps: int = 12
    """Losses to compare with other cases'."""

    def steps(self, step_ms: float) -> int:
        """Steps of a repeat."""
        return self._fit(self.seconds / self.repeats, step_ms, most=MOST_STEPS)

    def warm_up(self, step_ms: float) -> int:
        """Steps before the first repeat."""
        return self._fit(self.seconds / 5, step_ms, most=WARM_UP)

    def equal(self, step_ms: float) -> int:
        """Steps whose losses are compared; 3 at least."""
        return max(3, self._fit(self.seconds / 2, step_ms, most=self.equal_steps))

    def profiled(self, step_ms: float) -> int:
        """Steps under the profiler."""
        return self._fit(self.seconds / 5, step_ms, most=PROFILED)

    @staticmethod
    def _fit(seconds: float, step_ms: float, *, most: int) -> int:
        return max(1, min(most, int(seconds * 1e3 / max(step_ms, 1e-3))))


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured case: its name and everything its JSON line says."""

    case: str
    result: dict[str, Any]


class Stopwatch:
    """Measures steps on one rank of several; every method is collective."""

    def __init__(self, effort: Effort, device: torch.device, timelines: Path | None, *, rank: int) -> None:
        self._effort, self._device, self._rank = effort, device, rank
        self._timelines = timelines
        self.subject = ""
        """Of what follows, for the names of timelines."""

    def slowest_ms(self, step: Callable[[], object], *, steps: int = 2) -> float:
        """Milliseconds a step takes the slowest rank, first estimate."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        took = torch.tensor([(time.perf_counter() - began) / steps * 1e3], device=self._device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took)

    def losses(self, loss: Callable[[], torch.Tensor | float]) -> list[float]:
        """Global losses of the first steps; tensors are shares to be added up over ranks."""
        found: list[float] = []

        def one() -> None:
            share = loss()
            if isinstance(share, torch.Tensor):
                share = share.clone()
                dist.all_reduce(share)
            found.append(float(share))

        one()  # compiles and allocates
        step_ms = self.slowest_ms(one, steps=1)
        for _ in range(self._effort.equal(step_ms) - 2):
            one()
        return found

    def measure(
        self, case: str, step: Callable[[], object], *, rows: int, losses: Sequence[float], **more: Any
    ) -> Measurement:
        """`rows`: of all ranks in a step."""
        step()
        step_ms = self.slowest_ms(step)
        effort = self._effort
        timing = time_steps(step, steps=effort.steps(step_ms), repeats=effort.repeats, warm_up=effort.warm_up(step_ms))
        busy = profile_steps(step, steps=effort.profiled(step_ms))
        self._keep(case, busy)
        result = {
            **asdict(timing),
            **more,
            "samples_per_s": round(rows / timing.ms * 1e3),
            "busy_ms": busy.busy_ms,
            "sum_ms": busy.sum_ms,
            "kernels": busy.kernels,
            "losses": [round(loss, 7) for loss in losses],
            "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        }
        return Measurement(case=case, result=result)

    def _keep(self, case: str, busy: Busy) -> None:
        if self._timelines is None or self._rank != 0:
            return
        self._timelines.mkdir(parents=True, exist_ok=True)
        name = case.replace(":", "-").replace("/", "-")
        (self._timelines / f"{self.subject}_{name}_{dist.get_world_size()}gpu.txt").write_text(
            timeline_text(busy.timeline)
        )


def timeline_text(timeline: Sequence[Kernel]) -> str:
    """Kernels of a step by name, then in order."""
    by_name = [f"{us:9.1f} us x{count:4d}  {kernel[:110]}" for kernel, count, us in totals_by_name(timeline)[:45]]
    in_order = [f"{one.start_us:9.1f} {one.us:8.1f}  {one.name[:110]}" for one in timeline]
    return "\n".join((*by_name, "", *in_order, ""))
