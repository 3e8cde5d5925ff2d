"""Steps of several schedules on the same batches, timed in turn, so that what the machine does meanwhile befalls all alike. For `drift_bench.py`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch
from planning_bench import emit, lap  # type: ignore[import-not-found]  # beside this file
from rap_contract.plan import Plan
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.schedule import Schedule, Window, schedule_of
from rap_trainer.profiling.captured_windows import TRIED

if TYPE_CHECKING:
    from drift_bench import Bench  # type: ignore[import-not-found]  # beside this file

REPEATS = 3


class Timed:
    """A schedule's own graphs, kept while others are timed."""

    def __init__(self, runtime: CapturedRuntime, schedule: Schedule, plan: Plan | None) -> None:
        size = runtime.size
        preprocessor = size.preprocessor if plan is None else size.preprocessor.planned(plan)
        self._runtime, self._schedule = runtime, schedule
        self._step = runtime.builder.step(schedule, preprocessor, size.lists)
        with runtime.beside.alone():
            self._graphs = runtime.builder.graphs(self._step, size.slots, warm=True)

    def use(self) -> None:
        """Trains by them from the next step on."""
        size = self._runtime.size
        size.graphs, size.step, self._runtime._schedule = self._graphs, self._step, self._schedule


def table(bench: Bench, plans: dict[str, Plan], *, number: int) -> dict[tuple[str, float, bool], float]:
    """Seconds of a step by schedule, length and neighbour; each timing is of `number` steps. Collective."""
    runtime, lengths, world = bench.runtime, bench.lengths, bench.world
    bench.at(lengths[-1])
    kernels = runtime.num_kernels
    cases = {f"plan {name}": Timed(runtime, schedule_of(plan), plan) for name, plan in plans.items()}
    for window, programs in TRIED:
        cases[f"{window}/{programs or 'full'}"] = Timed(
            runtime, Schedule.uniform(kernels, Window(window), programs), None
        )
    lap("captured again", world)
    found = {}
    for length, beside in [*((length, False) for length in lengths), (lengths[-1], True)]:
        times: dict[str, list[float]] = {name: [] for name in cases}
        bench.at(length)
        for _ in range(REPEATS):
            for name, case in cases.items():
                torch.cuda.synchronize()  # another case's steps may still run
                case.use()
                bench.steps(2, beside=beside)
                times[name].append(bench.steps(number, beside=beside) / number)
        for name, each in times.items():
            found[name, length, beside] = statistics.median(each)
            if world.rank == 0:
                milliseconds = {
                    "step_ms": round(1e3 * found[name, length, beside], 4),
                    "best_ms": round(1e3 * min(each), 4),
                }
                emit(case="table", schedule=name, length=length, beside=beside, **milliseconds)
    return found
