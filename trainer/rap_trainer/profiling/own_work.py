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
from rap_planner.cost import Slot
from rap_planner.kernel_cost import Grid

from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.step import NoPreprocessing, Preprocessor
from rap_trainer.profiling.captured_again import need_room, nothing_changed
from rap_trainer.profiling.captured_windows import LONG_S, TRIED, in_turn, timed
from rap_trainer.profiling.found import LAST, NOTHING
from rap_trainer.world import World

STEPS, REPEATS = (4, 2), (3, 2)
"""Timed in turn with the other windows, so often; the median counts. The second of each for steps as long as LONG_S."""
LEAST_S = 1e-6


def own_work(runtime: CapturedRuntime, world: World) -> dict[Slot, float]:
    """Seconds of a step without preprocessing (NOTHING), with it inline, and in each of TRIED; of the slowest rank.

    Collective. Raises MemoryError, on all ranks if on one.
    """
    parts, work, kernels = runtime.assembled, runtime.preprocessor, runtime.num_kernels
    need_room(world, (len(TRIED) + 1) * runtime.builder.graph_bytes)

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
        for name, programs in TRIED:
            cases[name, programs] = captured(work, Schedule.uniform(kernels, Window(name), programs))
        is_long = timed(cases[NOTHING], world, num_steps=1) >= LONG_S
        found = in_turn(cases, world, num_steps=STEPS[is_long], repeats=REPEATS[is_long])
        for steps in cases.values():
            runtime.beside.close_behind(steps)
        runtime.beside.run(torch.cuda.empty_cache)
    return found


def with_own_work(profile: Profile, own: Mapping[Slot, float], *, predicted_s: Mapping[Grid, float]) -> Profile:
    """The profile whose windows say of the job's preprocessing as it is now what was measured.

    `predicted_s`: all of it alone by the profile, on each grid that was tried.
    """
    inline_s = max(own[INLINE, None] - own[NOTHING], LEAST_S)
    scale = inline_s / predicted_s[None] if predicted_s[None] > 0 else 1.0
    leaving = _leaving(own)
    windows = []
    for window in profile.windows:
        if window.name in PLACES:
            leave_s = leaving.get(window.name, window.ids_leave_seconds)
            responses = tuple(
                Response(
                    kind=kind,
                    programs=programs,
                    num_bytes=0,
                    solo_seconds=inline_s if programs is None else scale * predicted_s[programs],
                    added_seconds=max(seconds - own[NOTHING] - leave_s, 0.0),
                )
                for (name, programs), seconds in own.items()
                if name == window.name
                for kind in KINDS
            )
            window = window.model_copy(update={"responses": responses, "ids_leave_seconds": leave_s})
        windows.append(window)
    scaled = corrected(profile, preprocessing=scale)
    return scaled.model_copy(update={"step_seconds": own[NOTHING], "windows": tuple(windows)})


def _leaving(own: Mapping[Slot, float]) -> dict[str, float]:
    """What the step loses where the last kernel ends in a window rather than in the best one, by window; empty: not measured."""
    found = {name: own[LAST + name, None] for name in PLACES if (LAST + name, None) in own}
    if not found:
        return {}
    found[PLACES[0]] = own[PLACES[0], None]
    least = min(found.values())
    return {name: seconds - least for name, seconds in found.items()}
