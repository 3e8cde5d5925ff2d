"""Searches plans in a process of its own: a line of JSON in, a line of JSON out. `python -m rap_operator.replanning.worker`.

Apart from the operator so that no search takes its time or memory: the process is killed at the deadline, and may
take no more memory than it was started with.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from dataclasses import replace
from typing import Any

from rap_contract.json_text import parse_json
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile
from rap_contract.windows import INLINE
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of
from rap_planner.loads import Estimator, Schedule
from rap_planner.rate import Candidate
from rap_planner.search import Planner, Result
from rap_planner.task import Task
from rap_planner.task_json import task_from

HINT = "the first rank's /planning page"


def answer(text: str, *, deadline_s: float) -> dict[str, Any]:
    """What a search for a page comes to: plans as JSON and their predictions, or `error`."""
    try:
        page = parse_json(text, hint=HINT)
        if not isinstance(page, dict):
            return {"error": f"no JSON object: {HINT}"}
        if "error" in page:
            return {"error": str(page["error"])}
        profile = Profile.from_json(json.dumps(page.get("profile")))
        task = task_from(page.get("task"))
        plan = page.get("plan")
        in_force = None if plan is None else Plan.from_json(json.dumps(plan))
        found = _searched(
            task, profile, in_force, default_window=str(page.get("defaultWindow", INLINE)), deadline_s=deadline_s
        )
        return found | {"corrected": page.get("corrected") is True}
    except InvalidDocument as invalid:
        return {"error": " ".join(str(invalid).split())[:1000]}
    except MemoryError:
        return {"error": "the search needs more memory than it may take"}


def _searched(
    task: Task, profile: Profile, in_force: Plan | None, *, default_window: str, deadline_s: float
) -> dict[str, Any]:
    planner = Planner(enumerator=Enumerator.of(profile))
    end_s = time.monotonic() + deadline_s
    result = planner.search(task, profile, deadline=lambda: time.monotonic() >= end_s)
    today = None if in_force is None else _as_planned(task, in_force)
    if in_force is not None and today is not None:
        moved = set(in_force.owned)
        owned = frozenset(n for n, item in enumerate(task.items) if item.name in moved and item.owner is not None)
        schedule: Schedule = tuple((placed.window, placed.programs) for placed in in_force.schedule)
    else:
        today, owned, schedule = task, frozenset(), ((default_window, None),) * len(task.kernels)
    estimator = Estimator(result.estimator.costs, today)
    before = Candidate(owned=owned, schedule=schedule, seconds=estimator.step_seconds(owned, schedule))
    is_planned = in_force is not None and today is not task
    old = in_force if in_force is not None and is_planned else _made(result, estimator, before, profile)
    best, kernels = result.best, result.estimator.task.kernels
    is_same = (best.owned, best.schedule, kernels) == (before.owned, before.schedule, today.kernels)
    new = old if is_same else plan_of(result, profile, indicative=profile.model_hash is None)
    return {
        "plan": new.to_json(),
        "hash": new.hash,
        "shape": _shape(new),
        "before": "" if in_force is None else in_force.hash,
        "fallback": old.hash,
        "fallbackPlan": old.to_json(),
        "beforeSeconds": before.seconds,
        "afterSeconds": before.seconds if is_same else result.best.seconds,
        "indicative": profile.model_hash is None,
        "complete": result.complete,
    }


def _as_planned(task: Task, plan: Plan) -> Task | None:
    """The task with its launches in the plan's parts; None if the plan is of other ranks or launches."""
    try:
        return task.cut(plan.kernels) if plan.num_ranks == task.num_ranks else None
    except ValueError:
        return None


def _made(result: Result, estimator: Estimator, candidate: Candidate, profile: Profile) -> Plan:
    """The plan of what the ranks do without one."""
    default = replace(result, estimator=estimator, best=candidate)
    return plan_of(default, profile, indicative=profile.model_hash is None)


def _shape(plan: Plan) -> str:
    """What a plan does, whatever it predicts: the same shape is not tried twice."""
    from rap_contract.json_text import digest

    parts = [kernel.features for kernel in plan.kernels]
    what = [sorted(plan.mapping.items()), parts, [placed.model_dump() for placed in plan.schedule]]
    return digest(json.dumps(what, sort_keys=True))


def main() -> None:
    """Answers requests until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--deadline-seconds", type=float, required=True)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (options.memory_bytes, options.memory_bytes))
    os.nice(10)
    for line in sys.stdin:
        try:
            found = answer(line, deadline_s=options.deadline_seconds)
        except Exception as error:  # the operator must hear of it; the next request may be fine
            found = {"error": f"{type(error).__name__}: {error}"[:1000]}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
