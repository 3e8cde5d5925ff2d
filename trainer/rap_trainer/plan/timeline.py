"""A step as bars on a clock, by rank: training's windows and preprocessing kernels as predicted, parts as measured. Pure.

Windows have the lengths the profile measured; those it does not know share what is left of the step. A kernel begins where
its window opens, or after the kernel before it. Not here: how bars are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rap_contract.plan import Plan
from rap_contract.profile import Profile
from rap_contract.windows import INLINE, PLACES
from rap_planner.loads import Estimator, Load

MAX_RANKS = 16
"""Kinds of ranks that are drawn; ranks of one kind have the same work."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Something that takes time."""

    name: str
    start: float
    """Seconds after the step's beginning."""
    seconds: float
    kind: str
    """training, exchange, or preprocessing."""
    title: str


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Bars of one row."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class RankTimeline:
    """The rows of one kind of rank."""

    ranks: str
    lanes: tuple[Lane, ...]

    @property
    def seconds(self) -> float:
        """Where the last bar ends."""
        return max((bar.start + bar.seconds for lane in self.lanes for bar in lane.bars), default=0.0)


def timelines(
    plan: Plan, profile: Profile, estimator: Estimator, measured: Mapping[str, float] | None = None
) -> tuple[RankTimeline, ...]:
    """One timeline for each kind of rank; `measured`: seconds of a step by part, of any rank."""
    owned = frozenset(n for n, item in enumerate(estimator.task.items) if plan.mapping[item.name] is not None)
    loads = estimator.loads(owned)
    return tuple(
        RankTimeline(
            ranks=_ranks(load, loads, estimator.task.num_ranks),
            lanes=(*_predicted(plan, profile, estimator, load), *_measured(measured)),
        )
        for load in loads[:MAX_RANKS]
    )


def _ranks(load: Load, loads: Sequence[Load], num_ranks: int) -> str:
    if len(loads) == 1:
        return "rank 0" if num_ranks == 1 else f"each of {num_ranks} ranks"
    return f"rank {load.rank}" + (" and all like it" if load is loads[0] else "")


def _predicted(plan: Plan, profile: Profile, estimator: Estimator, load: Load) -> tuple[Lane, Lane]:
    lengths = _window_seconds(profile)
    schedule = [(placed.window, placed.programs) for placed in plan.schedule]
    solo = [estimator.solo(load, kernel, grid) for kernel, (_, grid) in enumerate(schedule)]
    at = sum(seconds for seconds, (window, _) in zip(solo, schedule, strict=True) if window == INLINE)
    opens = {INLINE: 0.0}
    training = []
    for name in PLACES:
        opens[name] = at
        training.append(Bar(name=name, start=at, seconds=lengths[name], kind="training", title=f"{name}: training"))
        at += lengths[name]
    exchange = estimator.exchange_seconds(frozenset())
    training.append(Bar(name="input_dist", start=at, seconds=exchange, kind="exchange", title="exchange of inputs"))
    kernels, free = [], 0.0
    for kernel, seconds, (window, grid) in zip(plan.kernels, solo, schedule, strict=True):
        start = max(opens[window], free)
        free = start + seconds
        where = "own grid" if grid is None else f"{grid} programs"
        reason = plan.prediction.kernels[kernel.launch].reason
        title = f"kernel {kernel.launch} {kernel.stage}, {len(kernel.features)} features, {window}, {where}: {reason}"
        name = f"{kernel.launch} {kernel.stage}"
        kernels.append(Bar(name=name, start=start, seconds=seconds, kind="preprocessing", title=title))
    return Lane(name="training, predicted", bars=tuple(training)), Lane(
        name="preprocessing, predicted", bars=tuple(kernels)
    )


def _window_seconds(profile: Profile) -> dict[str, float]:
    known = {name: profile.window(name).seconds for name in PLACES}
    left = max(0.0, profile.step_seconds - sum(seconds or 0.0 for seconds in known.values()))
    unknown = [name for name, seconds in known.items() if seconds is None]
    return {name: left / len(unknown) if seconds is None else seconds for name, seconds in known.items()}


def _measured(measured: Mapping[str, float] | None) -> tuple[Lane, ...]:
    if not measured:
        return ()
    bars, at = [], 0.0
    for name, seconds in measured.items():
        if seconds > 0:
            kind = "preprocessing" if name == "preprocess" else "training"
            bars.append(Bar(name=name, start=at, seconds=seconds, kind=kind, title=f"{name}: measured, exposed"))
            at += seconds
    return (Lane(name="step, measured", bars=tuple(bars)),)
