"""A drift on GPUs under the operator's own decision: throughput against an oracle that replans for free, and against never replanning.

    torchrun --standalone --nproc-per-node 2 trainer/benchmarks/drift_bench.py --plan 4

Lists grow threefold over five minutes and stay so; then somebody takes --sms SMs of each GPU. The first plan is made from the windows as the
job's own launches find them; decisions are `decide_replanning`'s, plans the search process's, when to measure again `Remeasuring`'s,
switches and measurements the captured runtime's. Time is compressed: a second of training stands for --scale seconds; a second in which
training stands still, or is held up by a capture beside it, for itself. Steps are made of batches that are on the device, so that the host's packing hides nothing. Then the table: steps of all plans that were met
and of uniform schedules, for each length and beside the neighbour, each timed REPEATS times in turn with the others, so that what the machine does meanwhile
befalls all alike; the oracle takes the best of each. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from drift_account import Chunk, steps_made, summary  # type: ignore[import-not-found]  # beside this file
from drift_neighbour import Neighbour  # type: ignore[import-not-found]  # beside this file
from drift_operator import POLICY, Operator  # type: ignore[import-not-found]  # beside this file
from drift_table import table  # type: ignore[import-not-found]  # beside this file
from planning_bench import emit, lap, subject_of  # type: ignore[import-not-found]  # beside this file
from rap_contract import metrics
from rap_contract.metrics import TRAINER
from rap_contract.plan import Plan
from rap_contract.windows import PLACES
from rap_operator.replanning.values import RankPage, Reading
from rap_planner.cost import Costs, Slot
from rap_trainer.batch import RawBatch
from rap_trainer.bench.subject import Subject, make_model
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan.comparison import STEP
from rap_trainer.plan_inputs import model_hash, read_profile
from rap_trainer.plans import MEAN_LENGTH, plan_job, synthetic_batch
from rap_trainer.profiling.own_work import own_work, with_own_work
from rap_trainer.replan.remeasuring import Remeasuring, measure_again
from rap_trainer.world import World, join_world, leave_world

GROWTH = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Of the lists, in the steps of the drift."""
FLAT_S, RAMP_S = 60.0, 300.0
"""Lists as planned for, and growing threefold. How long they stay and how long the neighbour is there: options."""
CHUNK_S = 0.2
SMS = 66
"""Half of an H200's (data sheet: 132)."""


class Bench:
    """The job on this rank: steps on batches of any of the lengths, beside a neighbour or alone."""

    def __init__(
        self, subject: Subject, runtime: CapturedRuntime, world: World, *, lengths: tuple[float, ...], sms: int = SMS
    ) -> None:
        self.runtime, self.world, self.lengths = runtime, world, lengths
        self._batches: dict[float, list[RawBatch]] = {}
        for length in sorted(lengths, reverse=True):  # the longest first: buffers grow once
            document = {**subject.document, "metadata": {**subject.document["metadata"]}}
            document["metadata"]["annotations"] = {MEAN_LENGTH: str(length)}
            self._batches[length] = []
            for seed in range(2):
                raw = synthetic_batch(document, subject.batch_size, seed=seed * 10 + world.rank, device=world.device)
                host = replace(raw, global_rows=subject.batch_size * world.size)
                self._batches[length].append(host.map(lambda tensor: tensor.cpu().pin_memory()))
        self.neighbour = Neighbour(world.device, sms=sms)
        self._length, self._states = 0.0, []  # type: ignore[var-annotated]  # of the runtime's own kind

    def at(self, length: float) -> None:
        """Trains on batches of this length from now on. Collective."""
        if length != self._length:
            self._length, self._states = length, [self.runtime.prepare(raw) for raw in self._batches[length]]
            self.steps(4)

    def steps(self, number: int, *, beside: bool = False) -> float:
        """Seconds of so many steps on the slowest rank. Collective."""
        self.neighbour.let(beside)
        torch.cuda.current_stream().synchronize()  # not the device: a plan may be captured meanwhile
        dist.barrier(self.world.control_group)
        began = time.perf_counter()
        for _ in range(number // 2):
            for now, following in ((0, 1), (1, 0)):
                self.runtime._upcoming = self._states[following]  # as if it had just been prepared
                self.runtime.train(self._states[now])
        torch.cuda.current_stream().synchronize()
        took = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=self.world.control_group)
        return float(took)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Of the drift, in seconds of compressed time."""

    hold_s: float
    """Lists stay three times as long, alone."""
    beside_s: float
    """And beside the neighbour."""
    scale: float

    @property
    def alone_s(self) -> float:
        return FLAT_S + RAMP_S + self.hold_s

    def length(self, now_s: float, lengths: Sequence[float]) -> float:
        wanted = lengths[0] + (lengths[-1] - lengths[0]) * min(max((now_s - FLAT_S) / RAMP_S, 0.0), 1.0)
        return min(lengths, key=lambda each: abs(each - wanted))


class Run:
    """The drift, from begin to end, on one rank."""

    def __init__(self, bench: Bench, world: World, operator: Operator | None, *, times: Times) -> None:
        self.bench, self.world, self.operator, self.times = bench, world, operator, times
        self.chunks: list[Chunk] = []
        self.stalls: list[float] = []
        self._watch = ThreadPoolExecutor(1)
        self._steps = self._seconds = 0.0
        self._ratios: deque[float] = deque(maxlen=3)
        self._planned: dict[str, float] = {}
        """Length of the lists when a plan came, by its hash."""
        inline_s = operator.planning.inline_seconds if operator is not None else (lambda profile, grid: 0.0)
        measure = measure_again(bench.runtime, "captured", world, inline_seconds=inline_s)
        store = operator.store if operator is not None else MetricStore(TRAINER)
        known = operator.known if operator is not None else None
        self._remeasuring = Remeasuring(POLICY, store, cast("Any", known), measure=measure, world=world)

    def go(self) -> None:
        """Collective."""
        now_s, times, scale = 0.0, self.times, self.times.scale
        number = max(4, 2 * round(CHUNK_S / (self.bench.steps(8) / 8) / 2))
        preparing: Future[None] | None = None
        while now_s < times.alone_s + times.beside_s:
            length, beside = times.length(now_s, self.bench.lengths), now_s >= times.alone_s
            self.bench.at(length)
            seconds = self.bench.steps(number, beside=beside)
            plan = self.bench.runtime.plan
            assert plan is not None
            self.chunks.append(
                Chunk(
                    length=length,
                    beside=beside,
                    steps=number,
                    seconds=seconds,
                    plan=plan.hash,
                    held_up=preparing is not None,
                )
            )
            now_s += seconds * scale
            self._steps, self._seconds = self._steps + number, self._seconds + seconds
            command = [self._look(now_s, length, seconds / number)] if self.operator is not None else [None]
            dist.broadcast_object_list(command, src=0, group=self.world.control_group)
            todo = command[0]
            assert todo is not None
            if todo["plan"]:
                preparing = self._watch.submit(self.bench.runtime.prepare_plan, Plan.from_json(todo["plan"]))
            if preparing is not None and self._all(preparing.done()):
                preparing.result()
                self._switch()
                preparing = None
            if todo["measure"]:
                self._measure(now_s, length, beside=beside)

    def _look(self, now_s: float, length: float, step_s: float) -> dict[str, Any]:
        operator = self.operator
        assert operator is not None
        plan = self.bench.runtime.plan
        assert plan is not None
        operator.plan = plan
        # As `Comparison` does, but over chunks: each stands for as many steps as the trainer's median goes over.
        growth = length / self._planned.setdefault(plan.hash, length) - 1
        expected_s = plan.prediction.step_seconds + growth * sum(each.added_seconds for each in plan.prediction.kernels)
        self._ratios.append(step_s / expected_s)
        operator.store.set(metrics.PLAN_ERROR_RATIO, statistics.median(self._ratios), part=STEP)
        operator.train_on(length)
        costs = Costs(operator.known.read())
        pages = tuple(
            RankPage(
                rank=rank,
                attempt=1,
                world_size=self.world.size,
                plan=plan.hash,
                steps=self._steps,
                step_seconds=self._seconds,
                exposed_seconds=0.0,
                stall_seconds=sum(self.stalls),
                predicted_seconds=plan.prediction.step_seconds if rank == 0 else None,
                lists={"lists": length},
                capacity={name: costs.capacity_seconds(name) for name in PLACES},
            )
            for rank in range(self.world.size)
        )
        operator.readings.append(Reading(at_s=now_s, pages=pages, num_asked=len(pages)))
        handed = operator.look(now_s)
        plan_text = operator.plans[handed].to_json() if handed else ""
        return {"plan": plan_text, "measure": self._remeasuring.is_due(now_s)}

    def steps_in(self, seconds: float) -> int:
        """About so many of the last steps, an even number."""
        last = self.chunks[-1]
        number: int = 2 * round(seconds / 2 * last.steps / last.seconds)
        return max(4, number)

    def _all(self, ready: bool) -> bool:
        lacking = torch.tensor([int(not ready)])
        dist.all_reduce(lacking, dist.ReduceOp.MAX, group=self.world.control_group)
        return not lacking.item()

    def _switch(self) -> None:
        torch.cuda.synchronize()
        dist.barrier(self.world.control_group)
        began = time.perf_counter()
        self.bench.runtime.switch_plan()
        took = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=self.world.control_group)
        self.stalls.append(float(took))
        step_s = self.chunks[-1].seconds / self.chunks[-1].steps
        if self.world.rank == 0:
            plan = self.bench.runtime.plan
            assert plan is not None
            emit(case="switch", plan=plan.hash, stood_s=float(took), steps=float(took) / step_s)

    def _measure(self, now_s: float, length: float, *, beside: bool) -> None:
        began = time.perf_counter()
        self._remeasuring.act(now_s)
        self.stalls.append(time.perf_counter() - began)
        if self.operator is not None:
            profile = self.operator.known.read()
            added_us = {
                _named((name, each.programs)): round(1e6 * each.added_seconds, 1)
                for name in PLACES
                for each in profile.window(name).responses
            }
            inline_us = round(1e6 * self.operator.planning.inline_seconds(profile), 1)
            found = {"step_ms": 1e3 * profile.step_seconds, "inline_us": inline_us, "added_us": added_us}
            emit(case="measured again", at_s=now_s, length=length, beside=beside, seconds=self.stalls[-1], **found)


def main() -> None:
    """One drift."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--max-rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128, help="of the tables")
    parser.add_argument("--first-length", type=float, default=20.0, help="of the lists, before they grow threefold")
    parser.add_argument("--scale", type=float, default=30.0)
    parser.add_argument("--sms", type=int, default=SMS, help="that the neighbour takes of each GPU")
    parser.add_argument("--hold-seconds", type=float, default=1440.0)
    parser.add_argument("--beside-seconds", type=float, default=1800.0)
    world = join_world(use_gpu=True)
    drift(parser.parse_args(), world)
    leave_world()


def _named(slot: Slot) -> str:
    window, programs = slot
    return f"{window or 'none'}/{programs or 'full'}"


def begun(subject: Subject, runtime: CapturedRuntime, world: World, *, length: float) -> tuple[Operator | None, Plan]:
    """The operator on the first rank, and the plan to begin with, of windows as the job's own launches find them. Collective."""
    found = own_work(runtime, world)
    if world.rank > 0:
        told: list[str] = [""]
        dist.broadcast_object_list(told, src=0, group=world.control_group)
        return None, Plan.from_json(told[0])
    tables = {feature.name: feature.table.name for feature in subject.graph.sparse if feature.table is not None}
    owned = runtime.assembly.ownership.owned
    owners = {tables[name]: rank for rank, names in enumerate(owned) for name in names}
    lists = frozenset(name for name, column in subject.graph.columns.items() if column.is_list)
    operator = Operator(subject.job, runtime, owners, lists)
    operator.train_on(length)
    # Kernels' costs are those of the profile that comes with RAP, scaled: `rap profile` takes half a minute more for them.
    base = read_profile(None, subject.job).model_copy(
        update={"model_hash": model_hash(subject.job), "num_ranks": world.size}
    )
    predicted_s = {grid: operator.planning.inline_seconds(base, grid) for grid in {each for _, each in found}}
    operator.known.replace(with_own_work(base, found, predicted_s=predicted_s))
    plan = operator.first_plan()
    dist.broadcast_object_list([plan.to_json()], src=0, group=world.control_group)
    emit(
        case="planned",
        plan=plan.hash,
        length=length,
        steps_ms={_named(slot): round(1e3 * seconds, 3) for slot, seconds in found.items()},
        slots=sorted({_named((placed.window, placed.programs)) for placed in plan.schedule}),
        predicted_s=plan.prediction.step_seconds,
        inline_s=plan.prediction.inline_seconds,
    )
    return operator, plan


def drift(options: argparse.Namespace, world: World) -> None:
    """Profile, plan, drift, table, summary. Collective."""
    torch.backends.cuda.matmul.allow_tf32 = True
    document = plan_job(options.plan, max_rows=options.max_rows, batch_size=options.batch, dim=options.dim)
    document["spec"]["trainer"] |= {"gpusPerNode": world.size}
    document["spec"]["checkpoint"]["path"] = tempfile.mkdtemp()  # the profile that was measured last is kept there
    subject = subject_of(document, SimpleNamespace(**vars(options)), world)
    runtime = CapturedRuntime(make_model(subject, world), subject.graph, world, batch_size=options.batch)
    lap("captured", world)
    lengths = tuple(options.first_length * growth for growth in GROWTH)
    bench = Bench(subject, runtime, world, lengths=lengths, sms=options.sms)
    lap("batches", world)
    bench.at(lengths[-1])
    bench.at(lengths[0])
    lap("trained", world)
    operator, plan = begun(subject, runtime, world, length=lengths[0])
    lap("planned", world)
    runtime.prepare_plan(plan)
    runtime.switch_plan()
    bench.at(lengths[0])
    times = Times(hold_s=options.hold_seconds, beside_s=options.beside_seconds, scale=options.scale)
    run = Run(bench, world, operator, times=times)
    run.go()
    lap("drifted", world)
    met = [{name: each.to_json() for name, each in operator.plans.items()} if operator is not None else {}]
    dist.broadcast_object_list(met, src=0, group=world.control_group)
    plans = {name: Plan.from_json(text) for name, text in met[0].items()}
    if operator is not None:
        emit(case="decisions", said=operator.said)
        for made in steps_made(run.chunks):
            emit(case="ran", **made)
        operator.close()
    steps_s = table(bench, plans, number=run.steps_in(CHUNK_S / 3))
    if world.rank == 0:
        emit(case="neighbour", sms=options.sms, registers=bench.neighbour.registers)
        for beside in (False, True, None):
            chunks = [chunk for chunk in run.chunks if beside is None or chunk.beside is beside]
            stood_s = sum(run.stalls) if beside is None else 0.0
            rates = summary(chunks, steps_s, f"plan {plan.hash}", scale=times.scale, stood_s=stood_s)
            emit(case="drift", plan=options.plan, gpus=world.size, beside=beside, stalls_s=run.stalls, **rates)
    bench.neighbour.close()
    runtime.close()


if __name__ == "__main__":
    main()
