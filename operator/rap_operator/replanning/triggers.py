"""What makes the operator look for another plan. Pure.

Each trigger is a number against its bound. Drifts count from the last search, so what goes on drifting is searched again. Another one that
has led to a search is `fired` and counts no more until it has fallen below its bound by the hysteresis, so a steady state is searched once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rap_contract.operations import Replanning
from rap_contract.status import Baseline, Load

from rap_operator.replanning.values import Window
from rap_operator.replanning.window import means

EXPOSED, PREDICTION, WORKLOAD, CAPACITY = "ExposedPreprocessing", "PredictionError", "WorkloadDrift", "CapacityDrift"
FRESHNESS, SIZE, REQUEST, FIRST = "Freshness", "SizeChanged", "Requested", "FirstWindow"
DRIFTS = frozenset({PREDICTION, WORKLOAD, CAPACITY})
"""Against what was found at the last search: each begins anew from there."""
MANDATORY = frozenset({FRESHNESS, SIZE, REQUEST})
"""Not optional: no backlog holds them up."""
ONE_ELEMENT = 1.0  # a list shorter than this is compared with it: from 0.1 to 0.2 elements changes no work


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """One trigger's number."""

    name: str
    value: float
    bound: float
    detail: str = ""

    @property
    def is_over(self) -> bool:
        return self.bound > 0 and self.value > self.bound

    @property
    def is_asked_for(self) -> bool:
        """Not a measurement: nothing is gained by watching it for a while."""
        return self.name in (FIRST, SIZE, REQUEST)

    @property
    def text(self) -> str:
        return f"{self.name} {self.value:.3g} (bound {self.bound:.3g}{', ' + self.detail if self.detail else ''})"


def measured(policy: Replanning, window: Window, baseline: Baseline) -> tuple[Trigger, ...]:
    """All triggers' numbers, the strongest reason first."""
    bounds = policy.triggers
    group, drift = workload_drift(baseline.workload, window.measured.workload)
    place, capacity = capacity_drift(baseline.capacity, window.measured.capacity)
    found = [
        Trigger(name=WORKLOAD, value=drift, bound=bounds.workload_ratio, detail=group),
        Trigger(name=CAPACITY, value=capacity, bound=bounds.capacity_ratio, detail=place),
        Trigger(
            name=PREDICTION,
            value=_relative(baseline.prediction_ratio, window.prediction_ratio),
            bound=bounds.prediction_ratio,
        ),
        Trigger(name=EXPOSED, value=window.exposed_ratio, bound=bounds.exposed_ratio),
        Trigger(name=FRESHNESS, value=_freshness(policy, window), bound=float(bounds.freshness_seconds)),
    ]
    return tuple(found)


def unsteady(policy: Replanning, window: Window) -> str:
    """What still changes inside the window: half of a bound from its first to its second half. Empty: nothing.

    A plan for the mean of before and after would suit neither.
    """
    change = _changes(policy, means(window.early), means(window.late))
    return change and f"{change} in half a window"


def unlike(policy: Replanning, window: Window) -> str:
    """In what a window is unlike those before it: by half of a bound. Empty: in nothing, as far as they are known."""
    return _changes(policy, means(window.around), window.measured) if window.around else ""


def _changes(policy: Replanning, before: Baseline, after: Baseline) -> str:
    group, drift = workload_drift(before.workload, after.workload)
    if 0 < policy.triggers.workload_ratio / 2 < drift:
        return f"the data of {group} changes by {100 * drift:.0f} %"
    place, drift = capacity_drift(before.capacity, after.capacity)
    if 0 < policy.triggers.capacity_ratio / 2 < drift:
        return f"the capacity of {place} changes"
    return ""


def calmed(fired: list[str], triggers: tuple[Trigger, ...], hysteresis: float) -> list[str]:
    """The triggers that stay fired."""
    calm = {
        trigger.name
        for trigger in triggers
        if trigger.value <= max(trigger.bound - (hysteresis if trigger.name != FRESHNESS else 0.1 * trigger.bound), 0.0)
    }
    return [name for name in fired if name not in calm]


def workload_drift(before: Mapping[str, Load], after: Mapping[str, Load]) -> tuple[str, float]:
    """The group that changed most, and by which share: list lengths relative, null shares absolute."""
    worst, most = "", 0.0
    for name, load in after.items():
        old = before.get(name)
        if old is None:
            continue
        change = 0.0
        if old.mean_list_length is not None and load.mean_list_length is not None:
            base = max(old.mean_list_length, ONE_ELEMENT)
            change = abs(max(load.mean_list_length, ONE_ELEMENT) - base) / base
        if old.null_ratio is not None and load.null_ratio is not None:
            change = max(change, abs(load.null_ratio - old.null_ratio))
        if change > most:
            worst, most = name, change
    return worst, most


def capacity_drift(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[str, float]:
    """Against all capacity together: a window that had next to nothing may double without a consequence."""
    total = sum(before.values())
    if total <= 0:
        return "", 0.0
    changes = {name: abs(after[name] - before[name]) / total for name in before if name in after}
    worst = max(changes, key=lambda name: changes[name], default="")
    return worst, changes.get(worst, 0.0)


def _relative(before: float | None, after: float | None) -> float:
    return abs(after / before - 1) if before and after is not None else 0.0


def _freshness(policy: Replanning, window: Window) -> float:
    is_idle = window.busy_ratio is not None and window.busy_ratio < policy.triggers.idle_ratio
    return window.freshness_s if is_idle and window.freshness_s is not None else 0.0
