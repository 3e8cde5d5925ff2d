"""The windows of a captured step measured again while a job trains, between two of its steps. GPU only; collective.

Probes run beside the real step on what its slots hold, but no row counts, and what a step changes besides is put back: the job
learns nothing from them and forgets nothing. Not here: when that is worth the seconds it takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from rap_contract.profile import Profile, Response, WindowProfile
from rap_contract.windows import HOST_GAPS, INPUT_DIST, OPTIMIZER
from rap_planner.correct import corrected

from rap_trainer.captured.assemble import Assembly
from rap_trainer.profiling.captured_windows import CapturedWindows
from rap_trainer.world import World

ROOM_BYTES = 4 << 30
"""Free memory below which nothing is tried: two sets of probes take 2 GiB, the graphs with them some hundred MiB."""


def measured_again(
    profile: Profile, assembly: Assembly, world: World, *, grids: Sequence[int | None], sort_early: bool = True
) -> Profile:
    """The profile with the step and its windows as they are now, and kernels slower or faster as the probes are.

    `grids`: those tried; each costs a second or two in which the job waits. Raises MemoryError, on all ranks if on one.
    """
    need_room(world, ROOM_BYTES)
    lengths = sorted({each.solo_seconds for each in _probes(profile.windows)})
    chosen = (lengths[len(lengths) // 3], lengths[2 * len(lengths) // 3]) if len(lengths) > 2 else (2e-5, 1e-4)
    with nothing_changed(assembly):
        found = CapturedWindows(assembly, world, sort_early=sort_early).find(grids=grids, lengths=chosen, brief=True)
    others = tuple(window for window in profile.windows if window.name in (OPTIMIZER, HOST_GAPS))
    windows = (*found.windows(profile.window(INPUT_DIST).seconds or 0.0), *others)
    slower = _seconds_per_byte(windows) / (_seconds_per_byte(profile.windows) or 1.0)
    again = corrected(profile, preprocessing=slower) if slower else profile
    return again.model_copy(update={"step_seconds": found.step_seconds, "windows": windows})


def need_room(world: World, num_bytes: int) -> None:
    """Raises MemoryError on all ranks if one has less memory free. Collective."""
    free = torch.tensor([torch.cuda.mem_get_info(world.device)[0]])
    if world.size > 1:
        dist.all_reduce(free, dist.ReduceOp.MIN, group=world.control_group)
    if int(free) < num_bytes:
        raise MemoryError(f"{int(free) >> 20} MiB are free on some rank, probes need {num_bytes >> 20}")


def _probes(windows: tuple[WindowProfile, ...]) -> list[Response]:
    return [each for window in windows for each in window.responses if each.kind == "memory" and each.programs is None]


def _seconds_per_byte(windows: tuple[WindowProfile, ...]) -> float:
    """Of the longest memory probes alone, on a full grid; 0 without any."""
    probes = _probes(windows)
    longest = max((each.num_bytes for each in probes), default=0)
    times = [each.solo_seconds / each.num_bytes for each in probes if each.num_bytes >= longest / 2 > 0]
    return statistics.median(times) if times else 0.0


@contextmanager
def nothing_changed(assembly: Assembly) -> Iterator[None]:
    """Zero rows in both slots; dense values, optimizer state and what the last steps left are put back."""
    optimizer, dense = assembly.optimizer, assembly.dense
    changed = [dense.flat.values, optimizer.step, *optimizer.states, *dense.buffers]
    for slot in assembly.slots:
        outcome = slot.outcome
        changed += [slot.header, outcome.logits_B, outcome.losses_P, outcome.loss_share, outcome.loss_sum]
    kept = [tensor.clone() for tensor in changed]
    for slot in assembly.slots:
        slot.targets.num_rows.zero_()
    try:
        yield
    finally:
        for tensor, before in zip(changed, kept, strict=True):
            tensor.copy_(before)
        torch.cuda.synchronize()
