"""The windows of the captured step: when each opens, and what the step loses to a probe in it, by kind, size and grid.

The real step runs, on what the slots hold, with probes in place of preprocessing. Collective: every rank makes the same
calls, and a step counts as long as on the slowest rank.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from rap_contract.profile import KINDS, Kind, Response
from rap_contract.windows import INLINE, PLACES
from rap_planner.cost import Slot

from rap_trainer.captured.assemble import Assembly
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.schedule import Placement, Schedule, Window
from rap_trainer.captured.step import NoPreprocessing, Preprocessor
from rap_trainer.profiling.found import LAST, NOTHING, Found, slowest
from rap_trainer.profiling.launches import graph_seconds
from rap_trainer.profiling.probes import Probes, ProbeSize
from rap_trainer.world import World

GRIDS: tuple[int | None, ...] = (None, 32, 64, 100)
"""Programs tried in each window: a full grid, and what leaves the exchange's or a GEMM's SMs free (H200: 132)."""
LENGTHS = (6e-6, 15e-6, 40e-6, 100e-6)
"""Seconds of the probes, alone on a full grid."""
TIMED_S, STEPS, REPEATS = 12e-3, (12, 16), 3
"""A timing takes about so long, in so many steps at least and at most; the median of so many counts. With few steps it is the ranks' beginning
that is timed: in 4 of 24 ms what a probe added was off by 0.5 ms (plan 4, 2 H200s, 2026-11-30)."""
BRIEF_STEPS, LONGEST_S = 4, 0.3
"""Of a timing at least, where all is to be found in seconds or so many steps as else would take longer than that."""
AT_ONCE = 8
"""Steps captured to be timed in turn: each of plan 4 holds some GB."""
LONG_S, IDLE_S = 10e-3, 5e-6
"""Steps as long as this are timed once, with the two shortest probes and one of so long, which shows what the window itself costs."""
TRIED: tuple[Slot, ...] = ((INLINE, None), *((name, None) for name in PLACES))
"""Where all of a long step's preprocessing is tried, on a full grid: with a program an SM it was 0.5 % better once, most often 10 to 60 % worse, and a
measurement took twice as long (plan 4, tables of 32, lists of 4 to 21, H200, 2026-11-30)."""


class CapturedWindows:
    """Captures a step again and again with probes in it."""

    def __init__(self, assembly: Assembly, world: World, *, sort_early: bool = True) -> None:
        self._assembly, self._world, self._sort_early = assembly, world, sort_early
        self._warm = False
        self._num_steps, self._repeats = STEPS[1], REPEATS

    def find(
        self,
        *,
        grids: Sequence[int | None] = GRIDS,
        kinds: Sequence[Kind] = KINDS,
        lengths: Sequence[float] = LENGTHS,
        seconds: float = math.inf,
        brief: bool = False,
        own: Preprocessor | None = None,
    ) -> Found:
        """Every window on the first grid, and on the others what `seconds` allow. Collective; some seconds a grid.

        `own`: what takes the probes' place in a long step.

        `brief`: of each grid one graph with a probe in every window, one of which works at a time, each timed once: a few times as fast,
        but what a branch costs that does nothing is not in it: a launch, and on several ranks an exchange of ids that leaves later.
        """
        base = self._steps(NoPreprocessing(), Schedule())
        step_seconds = self.seconds(base)
        is_long = step_seconds >= LONG_S
        self.pace(step_seconds, least=BRIEF_STEPS if brief else STEPS[0])
        self._repeats = 1 if brief or is_long else REPEATS
        opens = self._opens()
        if is_long and own is not None:
            base.close()
            return Found(step_seconds=step_seconds, opens_seconds=opens, own=self.with_all(own))
        if is_long:
            lengths = lengths[::2] if brief else (IDLE_S, *lengths[:2])
        probes = Probes(self._world.device, num=len(PLACES) if brief else 1)
        sizes = self._agreed([[probes.sized(kind, length) for kind in kinds] for length in lengths])
        found: dict[str, list[Response]] = {window: [] for window in PLACES}
        began = time.monotonic()
        for done, grid in enumerate(grids):
            so_far = time.monotonic() - began
            if done and slowest(so_far * (done + 1) / done - seconds, self._world) > 0:
                break
            solos = {size: probes.solo_seconds(size, grid) for alike in sizes for size in alike}
            probes.set(None)
            for windows in (PLACES,) if brief else [(window,) for window in PLACES]:
                steps = self._steps(probes, _one_in_each(windows, grid))
                for kernel, window in enumerate(windows):
                    for alike in sizes:
                        added = self._added(steps, steps if brief else base, probes, alike, kernel)
                        found[window] += [
                            Response(
                                kind=size.kind,
                                programs=grid,
                                num_bytes=size.num_bytes,
                                solo_seconds=solos[size],
                                added_seconds=seconds_added,
                            )
                            for size, seconds_added in zip(alike, added, strict=True)
                        ]
                steps.close()
        base.close()
        responses = {window: tuple(each) for window, each in found.items()}
        return Found(step_seconds=step_seconds, opens_seconds=opens, responses=responses)

    def _added(
        self, steps: CapturedSteps, base: CapturedSteps, probes: Probes, sizes: Sequence[ProbeSize], kernel: int
    ) -> list[float]:
        """What the step loses to each probe. Collective."""
        added: list[list[float]] = [[] for _ in sizes]
        for _ in range(self._repeats):
            probes.set(None, kernel)
            without = self._timed(base)
            for size, times in zip(sizes, added, strict=True):
                probes.set(size, kernel)
                times.append(self._timed(steps) - without)
        probes.set(None, kernel)
        return [max(0.0, statistics.median(times)) for times in added]

    def pace(self, step_seconds: float, *, least: int = STEPS[0]) -> None:
        """Timings in as many steps as steps of this length need."""
        wanted = min(max(round(TIMED_S / step_seconds), least), STEPS[1])
        self._num_steps = max(min(wanted, round(LONGEST_S / step_seconds)), BRIEF_STEPS)

    def seconds(self, steps: CapturedSteps) -> float:
        """Median seconds of a step, of the slowest rank. Collective."""
        return statistics.median(self._timed(steps) for _ in range(self._repeats))

    def seconds_under(self, work: Preprocessor, schedule: Schedule) -> float:
        """A step with this work under a schedule. Collective."""
        steps = self._steps(work, schedule)
        seconds = self.seconds(steps)
        steps.close()
        return seconds

    def with_all(self, work: Preprocessor) -> dict[Slot, float]:
        """Seconds of a step without work (NOTHING), and with all of it in each of TRIED. Collective.

        Of several ranks also with all of it in the first window but the LAST kernel, behind which ids leave for their owners.
        """
        count = work.num_kernels
        schedules: dict[Slot, Schedule] = {slot: Schedule.uniform(count, Window(slot[0]), slot[1]) for slot in TRIED}
        if self._world.size > 1 and count > 1:
            *most, last = Schedule.uniform(count, Window(PLACES[0])).placements
            for name in PLACES[1:]:
                schedules[LAST + name, None] = Schedule(placements=(*most, replace(last, window=Window(name))))
        found: dict[Slot, float] = {}
        order = (NOTHING, *schedules)
        for first in range(0, len(order), AT_ONCE):
            cases = {
                slot: self._steps(NoPreprocessing() if slot == NOTHING else work, schedules.get(slot, Schedule()))
                for slot in order[first : first + AT_ONCE]
            }
            found |= in_turn(cases, self._world, num_steps=self._num_steps, repeats=REPEATS)
            for steps in cases.values():
                steps.close()
            torch.cuda.empty_cache()
        return found

    def optimizer_seconds(self) -> float:
        """The dense optimizer's update alone; what it changes is put back. Collective."""
        optimizer, values = self._assembly.optimizer, self._assembly.dense.flat.values
        changed = (values, optimizer.step, *optimizer.states)
        kept = [tensor.clone() for tensor in changed]
        seconds, _ = graph_seconds([lambda: optimizer.update(slice(0, values.numel()))])
        for tensor, before in zip(changed, kept, strict=True):
            tensor.copy_(before)
        return slowest(seconds, self._world)

    def _timed(self, steps: CapturedSteps) -> float:
        return timed(steps, self._world, num_steps=self._num_steps)

    def _opens(self) -> dict[str, float]:
        """Probes without work in every window write when they begin."""
        names = ("inline", *PLACES)
        stamped = Probes(self._world.device, num=len(names), stamped=True)
        steps = self._steps(stamped, _one_in_each(names, 1))
        step, found = _turns(steps), []
        dist.barrier(self._world.control_group)
        for _ in range(STEPS[1]):
            step()
            torch.cuda.synchronize(self._world.device)
            stamps = stamped.stamps.tolist()
            found.append([(stamp - stamps[0]) * 1e-9 for stamp in stamps])
        steps.close()
        columns = zip(*found, strict=True)
        return {
            name: slowest(statistics.median(column), self._world) for name, column in zip(names, columns, strict=True)
        }

    def _steps(self, work: Preprocessor, schedule: Schedule) -> CapturedSteps:
        parts = self._assembly
        step = parts.step(work, schedule, lists=parts.lists)
        steps = CapturedSteps(step, parts.slots, warm=self._warm, sort_early=self._sort_early)
        self._warm = True
        return steps

    def _agreed(self, sizes: list[list[ProbeSize]]) -> list[list[ProbeSize]]:
        """The first rank's sizes on every rank."""
        if self._world.size > 1:
            dist.broadcast_object_list(sizes, src=0, group=self._world.control_group)
        return sizes


def in_turn(cases: Mapping[Slot, CapturedSteps], world: World, *, num_steps: int, repeats: int) -> dict[Slot, float]:
    """Seconds of a step of each case, medians of timings in turn: what drifts meanwhile is in all of them. Collective."""
    times = [[timed(steps, world, num_steps=num_steps) for steps in cases.values()] for _ in range(repeats)]
    return {name: statistics.median(each) for name, each in zip(cases, zip(*times, strict=True), strict=True)}


def timed(steps: CapturedSteps, world: World, *, num_steps: int) -> float:
    """Seconds of a step on the slowest rank; all ranks begin together, and one step goes before. Collective."""
    torch.cuda.synchronize(world.device)
    dist.barrier(world.control_group)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    step = _turns(steps)
    step()
    begin.record()
    for _ in range(num_steps):
        step()
    end.record()
    end.synchronize()
    return slowest(float(begin.elapsed_time(end)) / 1e3 / num_steps, world)


def _one_in_each(windows: Sequence[str], grid: int | None) -> Schedule:
    """Probe k in the k-th of these windows, which are in the step's order."""
    return Schedule(
        placements=tuple(Placement(kernel=k, window=Window(name), programs=grid) for k, name in enumerate(windows))
    )


def _turns(steps: CapturedSteps) -> Callable[[], None]:
    """Trains on one slot and the other in turn."""
    turn = 0

    def step() -> None:
        nonlocal turn
        steps.replay(turn)
        turn = 1 - turn

    return step
