"""What the planner predicts, measured on GPUs. JSON lines; each case is a command of its own.

python trainer/benchmarks/planning_bench.py kernels [--plans 0,2,3,4] [--seconds 40]
torchrun --standalone --nproc-per-node N trainer/benchmarks/planning_bench.py windows [--plan 0]
torchrun --standalone --nproc-per-node N trainer/benchmarks/planning_bench.py sweep [--plans 0,4] [--columns 10] [--exchange nccl]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.bench.subject import Subject
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.profiling.batches import first_rows, pool, workload_of
from rap_trainer.profiling.launches import launch_samples
from rap_trainer.profiling.subgraphs import parts
from rap_trainer.program import Program
from rap_trainer.world import World

if TYPE_CHECKING:
    from rap_contract.plan import Plan
    from rap_planner.loads import Estimator
    from rap_trainer.captured.runtime import CapturedRuntime
    from rap_trainer.captured.schedule import Schedule

BEGAN_S = time.monotonic()
MAX_TABLE_ROWS = 1_000_000
SETS = {4: 2}  # input sets by plan; others 4: more than the L2 holds
LENGTHS = {4: (5.0, 10.0, 20.0, 40.0)}  # mean list lengths by plan; others 1
ROWS = (512, 1024, 2048, 4096, 8192, 16384)
PARTS = 10  # widths of a plan
GRIDS = (None, 64)


def emit(**result: Any) -> None:
    """One JSON line."""
    print(json.dumps(result), flush=True)


def compiled(document: dict[str, Any]) -> FeatureGraph:
    """The feature graph of a job."""
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None, problems
    return graph


def kernels(options: argparse.Namespace) -> None:
    """Every launch of plans' fused programs over widths, list lengths and batch sizes."""
    device = torch.device("cuda")
    numbers = [int(number) for number in options.plans.split(",")]
    for number in numbers:
        document = plan_job(number, max_rows=MAX_TABLE_ROWS)
        graph = compiled(document)
        most = max(ROWS) if number != 4 else 8192
        until = time.monotonic() + options.seconds / len(numbers)
        for length in LENGTHS.get(number, (1.0,)):
            pools = [
                pool(document, most, mean_length=length, seed=seed, device=device)
                for seed in range(SETS.get(number, 4))
            ]
            cases = [(part, rows) for part in parts(graph, number=PARTS) for rows in ROWS if rows <= most]
            whole, rest = cases[: len(ROWS)], cases[len(ROWS) :]
            random.Random(number).shuffle(rest)
            share = until - time.monotonic()
            stop = time.monotonic() + share / max(1, len(LENGTHS.get(number, (1.0,))))
            for part, rows in (*whole, *rest):
                if time.monotonic() > (stop if number != 4 else until):
                    break
                batches = [first_rows(raw, rows, part) for raw in pools]
                for sample in launch_samples(part, batches, device, grids=GRIDS):
                    common = {"plan": number, "length": length, "features": len(part.features), "rows": rows}
                    emit(case="kernel", **common, **sample.model_dump(mode="json", by_alias=True, exclude_none=True))
            del pools


def windows(options: argparse.Namespace) -> None:
    """The windows of the captured step of a plan on the ranks of this torchrun."""
    from rap_trainer.bench.subject import make_model, make_subject
    from rap_trainer.captured.runtime import CapturedRuntime
    from rap_trainer.captured.state import Tuning
    from rap_trainer.profiling.captured_windows import CapturedWindows
    from rap_trainer.world import join_world

    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    subject = make_subject(options.plan, options.batch, world, max_rows=MAX_TABLE_ROWS)
    runtime = CapturedRuntime(
        make_model(subject, world),
        subject.graph,
        world,
        batch_size=options.batch,
        tuning=Tuning(exchange=options.exchange),
    )
    train(runtime, subject)
    began = time.perf_counter()
    found = CapturedWindows(runtime.assembled, world).find()
    if world.rank == 0:
        common = {"plan": options.plan, "batch": options.batch, "gpus": world.size, "exchange": options.exchange}
        emit(case="step", **common, seconds=found.step_seconds, took=time.perf_counter() - began)
        emit(case="opens", **common, **found.opens_seconds)
        for window, responses in found.responses.items():
            for response in responses:
                emit(case="response", **common, window=window, **response.model_dump(mode="json"))
    sys.stdout.flush()


def wide_job(factor: int, *, batch: int, max_rows: int) -> dict[str, Any]:
    """Plan 0 with `factor` times its dense and sparse columns."""
    document = plan_job(0, max_rows=max_rows, batch_size=batch)
    if factor == 1:
        return document
    spec = document["spec"]
    ints, cats = 13 * factor, 26 * factor
    dense, sparse, bucket = spec["features"]
    rows = sparse["table"]["rows"] * factor
    dense["columns"], sparse["columns"] = [f"int_{{0..{ints - 1}}}"], [f"cat_{{0..{cats - 1}}}"]
    sparse["table"]["rows"] = rows
    spec["columns"] = {"label": "int32", dense["columns"][0]: "float32", sparse["columns"][0]: "list<int64>"}
    spec["features"] = [dense, sparse, bucket]
    return document


def subject_of(document: dict[str, Any], options: argparse.Namespace, world: World) -> Subject:
    """A job to train, and batches of it in pinned memory, different on each rank."""
    job, graph = RAPJob.model_validate(document), compiled(document)
    rows = options.batch * world.size
    host = []
    for number in range(2):
        raw = synthetic_batch(document, options.batch, seed=100 * (number + 1) + world.rank, device=world.device)
        host.append(replace(raw, global_rows=rows).map(lambda tensor: tensor.cpu().pin_memory()))
    return Subject(
        plan=options.plan,
        batch_size=options.batch,
        max_rows=options.max_rows,
        document=document,
        job=job,
        graph=graph,
        program=Program(graph),
        host=tuple(host),
        ready=(),
    )


def sweep(options: argparse.Namespace) -> None:
    """For each plan: a profile, the plan made from it, and the measured step of other schedules beside it."""
    from rap_trainer.world import join_world

    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    for number in options.plans.split(","):
        options.plan = int(number)
        _sweep(options, world)


def placements(options: argparse.Namespace) -> None:
    """The measured step with all of a plan's preprocessing in each window, without a profile: what a placement is worth at all."""
    from rap_trainer.bench.subject import make_model
    from rap_trainer.captured.runtime import CapturedRuntime
    from rap_trainer.captured.schedule import Schedule, Window
    from rap_trainer.captured.step import NoPreprocessing
    from rap_trainer.profiling.captured_windows import CapturedWindows
    from rap_trainer.world import join_world

    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    document = plan_job(options.plan, max_rows=options.max_rows, batch_size=options.batch)
    document["spec"]["trainer"] |= {"gpusPerNode": world.size}
    subject = subject_of(document, options, world)
    lap("batches", world)
    runtime = CapturedRuntime(make_model(subject, world), subject.graph, world, batch_size=options.batch)
    lap("captured", world)
    train(runtime, subject)
    lap("trained", world)
    windows, common = CapturedWindows(runtime.assembled, world), {"plan": options.plan, "gpus": world.size}
    ideal = windows.seconds_under(NoPreprocessing(), Schedule())
    for window in Window:
        seconds = windows.seconds_under(runtime.preprocessor, Schedule.uniform(runtime.num_kernels, window))
        if world.rank == 0:
            emit(case="placement", **common, window=str(window), seconds=seconds, ideal=ideal, exposed=seconds - ideal)
    lap("measured", world)


def _sweep(options: argparse.Namespace, world: World) -> None:
    from rap_planner.enumerate import Enumerator
    from rap_planner.explain import plan_of
    from rap_planner.search import Planner
    from rap_trainer.bench.subject import make_model
    from rap_trainer.captured.runtime import CapturedRuntime
    from rap_trainer.captured.state import Tuning
    from rap_trainer.plan_inputs import task_for
    from rap_trainer.profiling.captured_profile import captured_profile

    document = wide_job(options.columns, batch=options.batch, max_rows=options.max_rows)
    if options.plan:
        document = plan_job(options.plan, max_rows=options.max_rows, batch_size=options.batch)
    document["spec"]["trainer"] |= {"gpusPerNode": world.size, "batchSizePerGpu": options.batch}
    lap("begins", world)
    subject = subject_of(document, options, world)
    lap("batches", world)
    model = make_model(subject, world)
    lap("model", world)
    tuning = Tuning(exchange=options.exchange)
    runtime = CapturedRuntime(model, subject.graph, world, batch_size=options.batch, tuning=tuning)
    lap("captured", world)
    train(runtime, subject)
    lap("trained", world)
    began = time.perf_counter()
    length = 20.0 if options.plan == 4 else 1.0
    profile = captured_profile(
        document,
        subject.graph,
        runtime.assembled,
        world,
        rows=options.batch,
        mean_length=length,
        date=time.strftime("%Y-%m-%d"),
        model_hash=None,
        seconds=options.seconds,
        grids=grids_of(options),
        own=runtime.preprocessor,
    )
    profiled = time.perf_counter()
    owned = runtime.assembly.ownership.owned
    tables = {feature.name: feature.table.name for feature in subject.graph.sparse if feature.table is not None}
    task = task_for(
        subject.job,
        profile,
        workload=workload_of(subject.host),
        owners={tables[name]: rank for rank, names in enumerate(owned) for name in names},
    )
    result = Planner(enumerator=Enumerator.of(profile)).search(task, profile)
    plan = plan_of(result, profile)
    common = {"plan": options.plan, "columns": options.columns, "gpus": world.size, "exchange": options.exchange}
    if world.rank == 0:
        took = {"profile_s": round(profiled - began, 1), "plan_s": round(time.perf_counter() - profiled, 3)}
        emit(case="profile", **common, **took, samples=len(profile.samples), profile=json.loads(profile.to_json()))
        emit(case="plan", **common, document=json.loads(plan.to_json()))
    Sweep(runtime, result.estimator, world, common).measure(plan, grids_of(options), seconds=options.sweep_seconds)
    runtime.close()
    sys.stdout.flush()


def lap(what: str, world: World) -> None:
    """When the first rank has come so far, in seconds of the process."""
    if world.rank == 0:
        emit(case="lap", what=what, seconds=round(time.monotonic() - BEGAN_S, 1))


def grids_of(options: argparse.Namespace) -> tuple[int | None, ...]:
    """Programs tried; None: a kernel's own."""
    return tuple(int(grid) or None for grid in options.grids.split(","))


def train(runtime: CapturedRuntime, subject: Subject) -> None:
    """A few steps, so that the slots hold batches."""
    pending = None
    for number in range(6):
        upcoming = runtime.prepare(subject.host[number % len(subject.host)])
        if pending is not None:
            runtime.train(pending)
        pending = upcoming
    runtime.fit()


class Sweep:
    """Measures schedules of one runtime. Collective."""

    def __init__(self, runtime: CapturedRuntime, estimator: Estimator, world: World, common: dict[str, Any]) -> None:
        from rap_trainer.captured.schedule import Schedule
        from rap_trainer.captured.step import NoPreprocessing
        from rap_trainer.profiling.captured_windows import CapturedWindows

        self._windows, self._whole = CapturedWindows(runtime.assembled, world), runtime.preprocessor
        self._estimator, self._world, self._common = estimator, world, common
        self._ideal = self._windows.seconds_under(NoPreprocessing(), Schedule())
        self._windows.pace(self._ideal)

    def measure(self, plan: Plan, grids: Sequence[int | None], *, seconds: float) -> None:
        """The plan, everything in one window, kernels of the plan moved one by one, then schedules by chance, in a time."""
        from rap_trainer.captured.schedule import schedule_of

        until, pick, self._work = time.monotonic() + seconds, schedule_of(plan), self._whole.planned(plan)
        self._measured("pick", pick)
        for name, schedule in schedules_beside(pick, grids):
            late = torch.tensor([float(time.monotonic() > until)])
            dist.all_reduce(late, dist.ReduceOp.MAX, group=self._world.control_group)
            if late.item():
                break
            self._measured(name, schedule)
        self._measured("pick again", pick)

    def _measured(self, name: str, schedule: Schedule) -> None:
        slots = tuple((str(each.window), each.programs) for each in schedule.placements)
        predicted = self._estimator.step_seconds(frozenset(), slots)
        seconds = self._windows.seconds_under(self._work, schedule)
        if self._world.rank == 0:
            took = {"seconds": seconds, "predicted": predicted, "ideal": self._ideal}
            emit(case="step", **self._common, name=name, kernels=len(slots), **took, slots=slots)


def schedules_beside(pick: Schedule, grids: Sequence[int | None]) -> Iterator[tuple[str, Schedule]]:
    """Other valid schedules, the plainest first; equal on every rank."""
    from rap_trainer.captured.schedule import Placement, Schedule, Window

    kernels = len(pick.placements)
    slots = [(window, grid) for window in Window for grid in ((None,) if window is Window.INLINE else grids)]
    for window, grid in slots:
        yield f"{window}/{grid}", Schedule.uniform(kernels, window, grid)
    if kernels == 1:
        return
    for kernel in range(kernels):
        for window, grid in slots:
            moved = list(pick.placements)
            moved[kernel] = Placement(kernel=kernel, window=window, programs=grid)
            ranks = [each.window.rank for each in moved]
            if ranks == sorted(ranks) and moved[kernel] != pick.placements[kernel]:
                yield f"kernel {kernel} {window}/{grid}", Schedule(placements=tuple(moved))
    draw = random.Random(kernels)
    while True:
        drawn = sorted((draw.choice(slots) for _ in range(kernels)), key=lambda slot: slot[0].rank)
        placements = (Placement(kernel=n, window=window, programs=grid) for n, (window, grid) in enumerate(drawn))
        yield "by chance", Schedule(placements=tuple(placements))


def main() -> None:
    """Runs one case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    kernel = commands.add_parser("kernels")
    kernel.add_argument("--plans", default="0,2,3,4")
    kernel.add_argument("--seconds", type=float, default=40.0)
    kernel.set_defaults(run=kernels)
    window = commands.add_parser("windows")
    window.add_argument("--plan", type=int, default=0)
    window.add_argument("--batch", type=int, default=4096)
    window.add_argument("--exchange", default="auto")
    window.set_defaults(run=windows)
    placed = commands.add_parser("placements")
    placed.add_argument("--plan", type=int, default=4)
    placed.add_argument("--batch", type=int, default=4096)
    placed.add_argument("--max-rows", type=int, default=MAX_TABLE_ROWS)
    placed.set_defaults(run=placements)
    swept = commands.add_parser("sweep")
    swept.add_argument("--plans", default="0", help="one after the other")
    swept.add_argument("--columns", type=int, default=1, help="times as many columns, of plan 0")
    swept.add_argument("--batch", type=int, default=4096)
    swept.add_argument("--max-rows", type=int, default=MAX_TABLE_ROWS)
    swept.add_argument("--exchange", default="auto")
    swept.add_argument("--grids", default="0,32,64,100", help="programs tried; 0: the kernel's own")
    swept.add_argument("--seconds", type=float, default=12.0, help="for the kernels of the profile, twice")
    swept.add_argument("--sweep-seconds", type=float, default=20.0, help="for schedules beside the plan's")
    swept.set_defaults(run=sweep)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
