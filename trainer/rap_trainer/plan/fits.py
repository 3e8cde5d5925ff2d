"""Whether a plan is one for this attempt, with the reason if not. Pure; the runtimes ask before they take a plan."""

from __future__ import annotations

from collections.abc import Mapping

from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan
from rap_contract.windows import INLINE


class PlanRefused(ValueError):
    """A runtime cannot run a plan; the one it has stays in force. The message says why and what to do."""


def refusal(plan: Plan, graph: FeatureGraph, *, num_ranks: int) -> str | None:
    """Why the plan is not of this job on so many ranks; None if it is."""
    if plan.num_ranks != num_ranks:
        return f"the plan is for {plan.num_ranks} ranks, this attempt has {num_ranks}; plan again with `rap plan`"
    mine, theirs = {feature.name for feature in graph.features}, set(plan.mapping)
    if mine != theirs:
        missing, unknown = sorted(mine - theirs), sorted(theirs - mine)
        what = (
            f"does not place feature {missing[0]}" if missing else f"places feature {unknown[0]}, which does not exist"
        )
        return f"the plan {what} ({len(missing)} missing, {len(unknown)} unknown); plan again with `rap plan`"
    return None


def owner_refusal(plan: Plan, graph: FeatureGraph, owners: Mapping[str, int] | None) -> str | None:
    """Why features cannot be preprocessed by the ranks the plan names; None if they can. `owners`: rank of each table.

    Without `owners` the runtime preprocesses own rows only.
    """
    if plan.owned and owners is None:
        return (
            f"the plan preprocesses {len(plan.owned)} features on their tables' owners, first {plan.owned[0]}; this runtime "
            "preprocesses every feature on its own rows: plan again without --table-owner, or set `runtime: eager`"
        )
    tables = {feature.name: feature.table for feature in graph.features}
    for name in plan.owned:
        table, rank = tables[name], plan.mapping[name]
        if table is None:
            return f"the plan preprocesses {name} on rank {rank}, but it is dense and has no table; plan again with `rap plan`"
        if owners is not None and owners.get(table.name) != rank:
            return (
                f"the plan preprocesses {name} on rank {rank}, its table {table.name} is on "
                f"{'no single rank' if table.name not in owners else f'rank {owners[table.name]}'}; plan again with --owners"
            )
    return None


def busiest_window(plan: Plan) -> str:
    """The window with most of the plan's work: where a runtime that preprocesses in one piece puts that piece."""
    seconds: dict[str, float] = {}
    for placed, cost in zip(plan.schedule, plan.prediction.kernels, strict=True):
        seconds[placed.window] = seconds.get(placed.window, 0.0) + cost.solo_seconds
    return max(seconds, key=lambda window: seconds[window], default=INLINE)
