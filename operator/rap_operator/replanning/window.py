"""From readings to a full window, or to the reason why there is none. Pure.

Full means: readings of one attempt and one plan over the whole length, without a hole, after stabilisation; counters
only rise; every number is finite. Anything else is said and nothing is decided. What a hole is depends on how often the
job is read: one of thousands is read less often than half its window, and its windows are longer then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from rap_contract.operations import Replanning
from rap_contract.status import Baseline, Load

from rap_operator.replanning.values import RankPage, Reading, Seen, Unusable, Window

MIN_READINGS = 3  # two differences: one could be a fluke of a scrape
HOLE = 0.5  # of the window: a longer pause between readings is a hole
LATE = 1.5  # of the usual pause between readings: a reader that is busy comes late
STALE_S = 90.0  # three scrapes at the default interval
AROUND = 4  # windows: what comes and goes within one has about the same share in each half of so many
RECENT = 8  # readings that tell the usual pause, broken ones included


def reduced(policy: Replanning, seen: Seen, *, plan: str | None, since_s: float | None) -> Window | Unusable:
    """The newest full window.

    `plan`: the hash the ranks should report; None: whatever they all report. `since_s`: for how long that has been so
    by the wall clock, where the readings do not tell; None: unknown.
    """
    if not seen.readings:
        return Unusable(reason="NoMetrics", message="no rank's metrics were read yet")
    newest = seen.readings[-1]
    trouble = _trouble(newest, seen, policy)
    if trouble is not None:
        return trouble
    reported = newest.plan
    if reported is None or (plan is not None and reported != plan):
        hashes = sorted({page.plan or "the default" for page in newest.pages})
        return Unusable(reason="OtherPlan", message=f"ranks report {', '.join(hashes)}, expected {plan or 'one plan'}")
    pace_s = _pace(seen.readings)
    # What is older than a stabilisation and two windows makes no difference any more.
    span_s = policy.stabilization_seconds + max(2 * policy.window_seconds, LATE * MIN_READINGS * pace_s)
    span_s = max(span_s, (AROUND + 1) * policy.window_seconds)
    alike, is_all = _alike(seen.readings, reported, since_s=newest.at_s - span_s)
    began_s = alike[0].at_s if not is_all or since_s is None else min(alike[0].at_s, seen.now_s - since_s)
    stable_s = began_s + policy.stabilization_seconds
    left_s = stable_s + policy.window_seconds - newest.at_s
    if newest.at_s < stable_s:
        return Unusable(reason="Stabilizing", message="measurements right after a start or a switch", wait_s=left_s)
    stable = [reading for reading in alike if reading.at_s >= stable_s]
    inside = _newest(stable, policy.window_seconds)
    hole_s = max(policy.window_seconds * HOLE, LATE * pace_s)
    if not _is_full(inside, policy, hole_s=hole_s):
        wait_s = max(left_s, policy.window_seconds / 8)
        message = f"no {policy.window_seconds} s of readings without a hole yet"
        return Unusable(reason="WindowNotFull", message=message, wait_s=wait_s)
    window = _reduce(inside, stall_from=_before(seen.readings, alike[0]))
    around = _newest(stable, AROUND * policy.window_seconds)
    is_long = around[-1].at_s - around[0].at_s >= AROUND * policy.window_seconds and _is_full(
        around, policy, hole_s=hole_s
    )
    return replace(window, around=tuple(around)) if isinstance(window, Window) and is_long else window


def kept_s(*, stabilization_s: float, window_s: float, confirm_s: float) -> float:
    """For how long a reading may decide something: what a switch cost is counted from the plan before, and a mix is judged by all around a window."""
    return max(2 * (stabilization_s + 2 * window_s), stabilization_s + (AROUND + 1) * window_s) + confirm_s


def widened(window: Window) -> Window | None:
    """The window of all that is around one; None where that is not enough."""
    if not window.around:
        return None
    wide = _reduce(window.around, stall_from=window.around[0])
    return replace(wide, stall_seconds=window.stall_seconds) if isinstance(wide, Window) else None


def _newest(readings: Sequence[Reading], seconds: float) -> list[Reading]:
    """The fewest of the newest that go over so many seconds; all there are where they do not."""
    newest_s = readings[-1].at_s
    inside = list(readings)
    while len(inside) > MIN_READINGS and newest_s - inside[1].at_s >= seconds:
        inside.pop(0)
    return inside


def _before(readings: Sequence[Reading], first: Reading) -> Reading:
    """The last reading of the plan before, if it is of this attempt: what the switch cost lies between it and now."""
    for reading in reversed(readings):
        if reading.is_complete and reading.plan != first.plan:
            return reading if reading.attempt == first.attempt else first
    return first


def _trouble(newest: Reading, seen: Seen, policy: Replanning) -> Unusable | None:
    age_s = seen.now_s - newest.at_s
    if age_s > max(STALE_S, policy.window_seconds * HOLE, 2 * _pace(seen.readings)) or age_s < 0:
        return Unusable(reason="MetricsStale", message=f"the newest reading is {age_s:.0f} s old")
    if not newest.pages:
        return Unusable(reason="NoMetrics", message=newest.error or "no rank answered")
    if not newest.is_complete:
        message = f"{len(newest.pages)} of {newest.num_asked} ranks answered: {newest.error}"
        return Unusable(reason="MetricsPartial", message=message)
    for page in newest.pages:
        if page.attempt != seen.attempt:
            message = f"rank {page.rank} reports attempt {page.attempt}, attempt {seen.attempt} runs"
            return Unusable(reason="MetricsStale", message=message)
    if newest.wrong:
        return Unusable(reason="MetricsInvalid", message=newest.wrong)
    return None


def _alike(readings: Sequence[Reading], plan: str, *, since_s: float) -> tuple[list[Reading], bool]:
    """The newest complete readings of one plan and attempt, and whether nothing else was ever seen before them."""
    found: list[Reading] = []
    for reading in reversed(readings):
        if reading.at_s < since_s:
            break
        if not reading.is_complete:
            continue
        if reading.plan != plan or reading.attempt != readings[-1].attempt or reading.wrong:
            return found[::-1], False
        found.append(reading)
    return found[::-1], True


def _pace(readings: Sequence[Reading]) -> float:
    """The usual time between two readings lately, whether ranks answered or not; 0: unknown."""
    recent = readings[-RECENT:]
    return statistics.median(late.at_s - early.at_s for early, late in pairwise(recent)) if len(recent) > 1 else 0.0


def _is_full(inside: Sequence[Reading], policy: Replanning, *, hole_s: float) -> bool:
    if len(inside) < MIN_READINGS or inside[-1].at_s - inside[0].at_s < policy.window_seconds:
        return False
    gaps = [late.at_s - early.at_s for early, late in pairwise(inside)]
    return max(gaps) <= hole_s and min(gaps) >= 0


def _reduce(inside: Sequence[Reading], *, stall_from: Reading) -> Window | Unusable:
    first, last = inside[0], inside[-1]
    fallen = next((rank for early, late in pairwise(inside) for rank in _fallen(early, late)), None)
    if fallen is not None:
        return Unusable(reason="MetricsInvalid", message=f"a counter of rank {fallen} fell")
    steps, seconds, exposed = [], [], []
    for early, late in zip(first.pages, last.pages, strict=False):
        num = _rise(early.steps, late.steps)
        took, waited = _rise(early.step_seconds, late.step_seconds), _rise(early.exposed_seconds, late.exposed_seconds)
        assert num is not None
        assert took is not None
        assert waited is not None
        steps.append(num)
        seconds.append(took)
        exposed.append(waited)
    if not steps or min(steps) < 1 or min(seconds) <= 0:
        return Unusable(reason="WindowNotFull", message="no step was made in it")
    step_s = max(took / num for took, num in zip(seconds, steps, strict=True))
    exposed_ratio = max(waited / took for waited, took in zip(exposed, seconds, strict=True))
    predicted = last.pages[0].predicted_seconds
    ratio = step_s / predicted if predicted else None
    stall = max(
        ((late.stall_seconds or 0.0) - (early.stall_seconds or 0.0))
        for early, late in zip(stall_from.pages, last.pages, strict=False)
    )
    return Window(
        seconds=last.at_s - first.at_s,
        num_readings=len(inside),
        step_seconds=step_s,
        exposed_ratio=min(exposed_ratio, 1.0),
        stall_seconds=max(stall, 0.0),
        prediction_ratio=ratio,
        lag_s=max((page.lag_s for reading in inside for page in reading.pages if page.lag_s is not None), default=None),
        freshness_s=_mean([page.freshness_s for reading in inside for page in reading.pages]),
        busy_ratio=_mean([page.busy_ratio for reading in inside for page in reading.pages]),
        measured=means(inside, ratio),
        early=tuple(inside[: len(inside) // 2]),
        late=tuple(inside[-(len(inside) // 2) :]),
    )


def _fallen(early: Reading, late: Reading) -> list[int]:
    """Ranks of which a counter is lower in the later reading: somebody lies, or restarted unseen."""
    return [
        after.rank
        for before, after in zip(early.pages, late.pages, strict=False)
        if before.rank != after.rank
        or _rise(before.steps, after.steps) is None
        or _rise(before.step_seconds, after.step_seconds) is None
        or _rise(before.exposed_seconds, after.exposed_seconds) is None
    ]


def means(readings: Sequence[Reading], ratio: float | None = None) -> Baseline:
    """Workload and capacity over some readings; `ratio`: of the measured to the predicted step."""
    capacity = {name: _short(value) or 0.0 for name, value in _means(readings, lambda page: page.capacity).items()}
    return Baseline(workload=_workload(readings), capacity=capacity, prediction_ratio=_short(ratio))


def _rise(early: float | None, late: float | None) -> float | None:
    if early is None or late is None or late < early:
        return None
    return late - early


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _means(readings: Sequence[Reading], part: Callable[[RankPage], Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    numbers: dict[str, int] = {}
    for reading in readings:
        for page in reading.pages:
            for name, value in part(page).items():
                sums[name] = sums.get(name, 0.0) + value
                numbers[name] = numbers.get(name, 0) + 1
    return {name: total / numbers[name] for name, total in sums.items()}


def _workload(readings: Sequence[Reading]) -> dict[str, Load]:
    lists = _means(readings, lambda page: page.lists)
    nulls = _means(readings, lambda page: page.nulls)
    return {
        name: Load(mean_list_length=_short(lists.get(name)), null_ratio=_short(nulls.get(name)))
        for name in dict.fromkeys((*lists, *nulls))
    }


def _short(value: float | None) -> float | None:
    """Four digits: the rest is noise, and would make every status another one."""
    return None if value is None else float(f"{value:.4g}")
