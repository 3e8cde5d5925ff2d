"""From a search's result to a `Plan`: the parts of its prediction, why each kernel is where it is, what was rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rap_contract.plan import KernelPrediction, Part, Placement, Plan, Prediction, Rejected
from rap_contract.profile import Profile
from rap_contract.windows import INLINE, ORDER

from rap_planner.cost import Costs, Slot
from rap_planner.kernel_cost import Terms
from rap_planner.loads import Estimate, Estimator
from rap_planner.search import Planner, Result
from rap_planner.task import Task

MAX_REJECTED = 24
US = 1e6  # microseconds in a second
GROWTH = (0.5, 2.0, 4.0)  # of the data, tried for the sensitivity
SLOW_LINK = 0.1  # of the measured bandwidth


def plan_of(result: Result, profile: Profile, *, indicative: bool = False, sensitivity: tuple[str, ...] = ()) -> Plan:
    """The plan a search found, with its prediction explained."""
    estimator, best = result.estimator, result.best
    task = estimator.task
    estimate = estimator.estimate(best.owned, best.schedule)
    parts = _parts(result, estimate)
    exposed = sum(part.seconds for part in parts if part.name.startswith("preprocessing"))
    solo = zip(estimator.rates, estimator.terms(estimate.load), strict=True)
    alone = sum(rates.error_ratio * terms.seconds for rates, terms in solo)
    prediction = Prediction(
        parts=parts,
        kernels=tuple(_kernels(result, estimate)),
        # One number, summed one way: added up otherwise, the very same step could seem longer by a rounding.
        inline_seconds=sum(part.seconds for part in parts) if best == result.inline else result.inline.seconds,
        bound_seconds=result.bound_seconds,
        error_seconds=max(alone, profile.coefficients.error_ratio * exposed),
        rejected=_rejected(result),
        sensitivity=sensitivity,
        indicative=indicative,
    )
    return Plan(
        job=task.job,
        num_ranks=task.num_ranks,
        profile_hash=profile.hash,
        mapping={item.name: item.owner if n in best.owned else None for n, item in enumerate(task.items)},
        kernels=task.kernels,
        schedule=tuple(Placement(window=window, programs=grid) for window, grid in best.schedule),
        prediction=prediction,
    )


def sensitivity(planner: Planner, task: Task, profile: Profile, *, of: Result) -> tuple[str, ...]:
    """What would change the plan: data of other sizes, and a slow link. Searches once for each."""
    slow = profile.links.model_copy(update={"bytes_per_second": profile.links.bytes_per_second * SLOW_LINK})
    cases = [(f"{factor:g} x the data", factor, profile) for factor in GROWTH]
    if task.num_ranks > 1:
        cases.append((f"a link of {SLOW_LINK:g} x the bandwidth", 1.0, profile.model_copy(update={"links": slow})))
    found = []
    for name, factor, measured in cases:
        result = planner.search(task.scaled(factor), measured)
        other, kernels = result.best, result.estimator.task.kernels
        if (other.owned, other.schedule, kernels) == (of.best.owned, of.best.schedule, of.estimator.task.kernels):
            found.append(f"{name}: the same plan")
        else:
            estimator = Estimator(Costs(measured), of.estimator.task.scaled(factor))
            loss = estimator.step_seconds(of.best.owned, of.best.schedule) - other.seconds
            found.append(f"{name}: another plan, {loss * US:.1f} us a step better than this one then")
    return tuple(found)


def _parts(result: Result, estimate: Estimate) -> tuple[Part, ...]:
    """Parts of the step on the slowest rank; they add up to it."""
    estimator, load = result.estimator, estimate.load
    total = sum(estimator.terms(load, [grid for _, grid in result.best.schedule]), Terms())
    hidden = sum(estimate.added) - total.seconds
    return (
        Part(name="training", seconds=estimator.costs.training_seconds - load.idle_seconds),
        Part(name="input exchange", seconds=estimate.exchange_seconds),
        Part(name="preprocessing: launches", seconds=total.launch),
        Part(name="preprocessing: bytes", seconds=total.memory),
        Part(name="preprocessing: ops", seconds=total.ops),
        Part(name="preprocessing: imbalance", seconds=total.imbalance),
        Part(name="preprocessing: narrow grids", seconds=total.narrow),
        Part(name="preprocessing: hidden or co-run slowdown", seconds=hidden),
    )


def _kernels(result: Result, estimate: Estimate) -> Iterator[KernelPrediction]:
    estimator, schedule = result.estimator, result.best.schedule
    sizes = [0.0] * len(schedule)
    for item in estimator.task.items:
        for piece in item.pieces:
            sizes[piece.kernel] += piece.num_bytes
    for kernel, slot in enumerate(schedule):
        yield KernelPrediction(
            solo_seconds=estimator.solo(estimate.load, kernel, slot[1]),
            added_seconds=estimate.added[kernel],
            num_bytes=int(sizes[kernel]),
            reason=_reason(result, estimate, kernel),
        )


def _reason(result: Result, estimate: Estimate, kernel: int) -> str:
    window, _ = result.best.schedule[kernel]
    inline = result.estimator.solo(estimate.load, kernel, None)
    added = estimate.added[kernel]
    here = f"adds {added * US:.1f} us here, {inline * US:.1f} inline"
    if window == INLINE:
        here = f"adds {added * US:.1f} us inline"
    others = [(seconds, slot) for slot, seconds in _alternatives(result, kernel) if slot[0] != INLINE]
    if not others:
        return f"{here}; the kernel behind it leaves no other place" if kernel + 1 < len(result.best.schedule) else here
    seconds, slot = min(others, key=lambda pair: pair[0])
    return f"{here}; next best {_slot(slot)}, step {(seconds - result.best.seconds) * US:+.1f} us"


def _alternatives(result: Result, kernel: int) -> Iterator[tuple[Slot, float]]:
    """Other valid slots of one kernel, with the step each would lead to."""
    schedule, estimator = result.best.schedule, result.estimator
    low = ORDER[schedule[kernel - 1][0]] if kernel else 0
    high = ORDER[schedule[kernel + 1][0]] if kernel + 1 < len(schedule) else len(ORDER)
    loads = estimator.loads(result.best.owned)
    offset = result.best.seconds - estimator.slowest(loads, schedule)[0]
    for window, place in ORDER.items():
        if low <= place <= high:
            for grid in estimator.costs.grids[window]:
                if (window, grid) != schedule[kernel]:
                    changed = (*schedule[:kernel], (window, grid), *schedule[kernel + 1 :])
                    yield (window, grid), estimator.slowest(loads, changed)[0] + offset


def _rejected(result: Result) -> tuple[Rejected, ...]:
    """Whole alternatives: all kernels in one slot, no feature moved, the paper's order; nearest first."""
    estimator, best = result.estimator, result.best
    found: dict[str, float] = {}

    def add(what: str, seconds: Callable[[], float] | float, *, same: bool) -> None:
        if not same:
            found.setdefault(what, (seconds if isinstance(seconds, float) else seconds()) - best.seconds)

    add("best schedule with every feature on its own rows", result.own_rows.seconds, same=not best.owned)
    same = (result.in_order.owned, result.in_order.schedule) == (best.owned, best.schedule)
    add("mapping first, then schedule (the paper's order)", result.in_order.seconds, same=same)
    for window, grids in estimator.costs.grids.items():
        for grid in grids:
            schedule = ((window, grid),) * len(best.schedule)
            seconds = estimator.step_seconds(best.owned, schedule)
            add(f"all kernels {_slot((window, grid))}", seconds, same=schedule == best.schedule)
    ordered = sorted(found.items(), key=lambda pair: (pair[1], pair[0]))[:MAX_REJECTED]
    return tuple(Rejected(what=what, more_seconds=more) for what, more in ordered)


def _slot(slot: Slot) -> str:
    window, grid = slot
    return INLINE if window == INLINE else f"in {window}, {'full grid' if grid is None else f'{grid} programs'}"
