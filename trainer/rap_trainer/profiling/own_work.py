"""What all of a job's preprocessing adds to its captured step in each window: the job's own launches are the probe. GPU only; collective.

Probes of one kind and length say how much room a window has; how well these very launches fit it they say only roughly
(on two H200s the order of plan 4's windows was another one, 2026-11-30). Measured between two steps, as `captured_again` does. Not here: when.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from rap_contract.profile import KINDS, Profile, Response
from rap_contract.windows import INLINE, PLACES
from rap_planner.correct import corrected

from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.step import NoPreprocessing, Preprocessor
from rap_trainer.profiling.captured_again import need_room, nothing_changed
from rap_trainer.profiling.captured_windows import LONG_S, in_turn, timed
from rap_trainer.profiling.found import NOTHING
from rap_trainer.world import World

STEPS, REPEATS = (4, 2), (3, 2)
"""Timed in turn with the other windows, so often; the median counts. The second of each for steps as long as LONG_S."""
LEAST_S = 1e-6


def own_work(runtime: CapturedRuntime, world: World) -> dict[str, float]:
    """Seconds of a step without preprocessing (NOTHING), with it inline, and in each of PLACES; of the slowest rank.

    Collective. Raises MemoryError, on all ranks if on one.
    """
    parts, work, kernels = runtime.assembled, runtime.preprocessor, runtime.num_kernels
    need_room(world, (len(PLACES) + 2) * runtime.builder.graph_bytes)

    def captured(work: Preprocessor, schedule: Schedule) -> CapturedSteps:
        step = parts.step(work, schedule, lists=parts.lists)
        with step.muted():  # each launch hands over how many rows count, and none may
            # As a plan is captured beside training: without looking for garbage, which takes longer than the capture.
            return runtime.beside.run(
                lambda: CapturedSteps(step, parts.slots, warm=True, sort_early=runtime.sorts_early, beside=True)
            )

    runtime.settle()
    with runtime.beside.alone(), nothing_changed(parts):
        cases = {NOTHING: captured(NoPreprocessing(), Schedule())}
        for name in (INLINE, *PLACES):
            cases[name] = captured(work, Schedule.uniform(kernels, Window(name)))
        is_long = timed(cases[NOTHING], world, num_steps=1) >= LONG_S
        found = in_turn(cases, world, num_steps=STEPS[is_long], repeats=REPEATS[is_long])
        for steps in cases.values():
            runtime.beside.close_behind(steps)
        runtime.beside.run(torch.cuda.empty_cache)
    return found


def with_own_work(profile: Profile, own: Mapping[str, float], *, predicted_s: float) -> Profile:
    """The profile whose windows say of the job's preprocessing as it is now what was measured. `predicted_s`: all of it inline, by the profile."""
    inline_s = max(own[INLINE] - own[NOTHING], LEAST_S)
    windows = []
    for window in profile.windows:
        if window.name in PLACES:
            added_s = max(own[window.name] - own[NOTHING], 0.0)
            responses = tuple(
                Response(kind=kind, num_bytes=0, solo_seconds=inline_s, added_seconds=added_s) for kind in KINDS
            )
            window = window.model_copy(update={"responses": responses})
        windows.append(window)
    scaled = corrected(profile, preprocessing=inline_s / predicted_s) if predicted_s > 0 else profile
    return scaled.model_copy(update={"step_seconds": own[NOTHING], "windows": tuple(windows)})
