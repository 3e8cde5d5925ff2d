"""One of two ranks that train the same steps under many mappings and say whether every loss stayed as it was. A program.

python owner_ranks.py CASES, with RANK and the like in the environment. The first rank prints one JSON line a case.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

from planner.plans_of_jobs import any_plan
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.training import Evaluation as EvaluationSpec
from rap_contract.windows import INLINE, PLACES
from rap_trainer.batch import RawBatch
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.plan_inputs import owners_of
from rap_trainer.program.columns import BatchError
from rap_trainer.step.choice import choose_runtime
from rap_trainer.step.runtime import Runtime
from rap_trainer.synthetic_batch import synthetic_batch
from rap_trainer.world import World, join_world, leave_world
from train.small_jobs import document

ROWS = ((16, 16), (16, 7), (3, 0), (16, 16))
"""Of each rank, by step."""


def job() -> RAPJob:
    """Lists of several ids with weights of their own, chains that look at row ids, two features of one column."""
    spec = document(Path("/nowhere"), trainer__processesPerNode=2)
    spec["metadata"]["annotations"] = {"rap.dev/mean-list-length": "4"}
    spec["spec"]["features"] += [
        {"name": "sampled_{column}", "columns": ["cat_{0..1}"], "ops": [{"sample": {"rate": 0.5, "salt": 3}}]},
        {"name": "bucket", "columns": ["int_1"], "ops": [{"bucketize": {"borders": [0.5, 1.0]}}]},
    ]
    for feature in spec["spec"]["features"][2:]:
        feature["table"] = {"rows": 40, "dim": 8}
        feature["ops"] += [] if feature["name"] == "bucket" else [{"positiveModulus": {"modulus": 40}}]
    return RAPJob.model_validate(spec)


def batch(asked: RAPJob, step: int, world: World) -> RawBatch:
    """Rows that no other rank or step has."""
    values = asked.model_dump(mode="json", by_alias=True, exclude_none=True)
    rows = ROWS[step][world.rank]
    raw = synthetic_batch(values, rows, seed=10 * step + world.rank)
    ids = raw.row_ids_B + 1000 * step + 100 * world.rank
    return replace(raw, row_ids_B=ids, global_rows=sum(ROWS[step]))


def losses(asked: RAPJob, graph: FeatureGraph, world: World, plans: dict[int, Plan]) -> tuple[list[float], Runtime]:
    """Of this rank's rows, under plans switched to before their steps."""
    built = build_model(asked.spec, embedding_bag_collection(graph), num_dense=graph.dense_width)
    model = shard_model(built, asked.spec, world)
    evaluator = Evaluator(EvaluationSpec(window_rows=10**6), world.device)
    runtime, _ = choose_runtime(asked.spec, graph, model, evaluator, world)
    found, pending = [], None
    for step in range(len(ROWS) + 1):
        if step in plans:
            runtime.prepare_plan(plans[step])
            runtime.switch_plan()
        upcoming = runtime.prepare(batch(asked, step, world)) if step < len(ROWS) else None
        if pending is not None:
            found.append(float(runtime.train(pending).loss_sum or 0.0))
        pending = upcoming
    return found, runtime


def mapped(plan: Plan, owners: dict[str, int], graph: FeatureGraph, draw: random.Random) -> Plan:
    """The plan with features by chance at their tables' owners."""
    tables = {feature.name: feature.table.name for feature in graph.sparse if feature.table is not None}
    share = draw.choice([0.3, 0.7, 1.0])
    moved = {name: owners[table] for name, table in tables.items() if draw.random() < share}
    return Plan.model_validate({**plan.model_dump(), "mapping": {**plan.mapping, **moved}, "hash": ""})


def main(cases: int) -> None:
    """Every case, then what is refused and what fails."""
    world = join_world(use_gpu=False)
    asked = job()
    graph, problems = compile_features(asked.spec)
    assert graph is not None, problems
    expected, runtime = losses(asked, graph, world, {})
    built = build_model(asked.spec, embedding_bag_collection(graph), num_dense=graph.dense_width)
    owners = owners_of(shard_model(built, asked.spec, world).plan)
    draw = random.Random(5)
    for _ in range(cases):
        plans = {
            step: mapped(any_plan(asked, [draw.choice([INLINE, *PLACES])]), owners, graph, draw) for step in (0, 2)
        }
        found, runtime = losses(asked, graph, world, plans)
        said = {"case": "losses", "moved": [len(plan.owned) for plan in plans.values()], "equal": found == expected}
        print(json.dumps({**said, "rank": world.rank}), flush=True)
    plan = mapped(any_plan(asked, [INLINE]), owners, graph, random.Random(1))
    wrong = {name: None if rank is None else 1 - rank for name, rank in plan.mapping.items()}
    try:
        runtime.prepare_plan(Plan.model_validate({**plan.model_dump(), "mapping": wrong, "hash": ""}))
    except PlanRefused as reason:
        print(json.dumps({"case": "refused", "rank": world.rank, "reason": str(reason)}), flush=True)
    runtime.prepare_plan(plan)
    runtime.switch_plan()
    raw = batch(asked, 0, world)
    try:
        runtime.prepare(replace(raw, columns={}) if world.rank == 1 else raw)
    except BatchError as error:
        print(json.dumps({"case": "failed", "rank": world.rank, "reason": str(error)}), flush=True)
    leave_world()


if __name__ == "__main__":
    main(int(sys.argv[1]))
