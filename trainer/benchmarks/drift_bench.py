"""A drift on GPUs under the operator's own decision: throughput against an oracle that replans for free, and against never replanning.

    torchrun --standalone --nproc-per-node 2 trainer/benchmarks/drift_bench.py --plan 4

Lists grow threefold over five minutes; later somebody multiplies matrices on the same GPUs. The job profiles itself, plans, and follows:
decisions are `decide_replanning`'s, plans the search process's, switches and renewed measurements the captured runtime's. Time is
compressed: a second of training stands for --scale seconds; a second in which training stands still, or is held up by a capture beside it,
for itself. Steps are made of batches that are on the device, so that the host's packing hides nothing. Then the table: steps of all plans that were met
and of uniform schedules, for each length and beside the neighbour, each timed REPEATS times in turn with the others, so that what the machine does meanwhile
befalls all alike; the oracle takes the best of each. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from drift_account import Chunk, steps_made, summary  # type: ignore[import-not-found]  # beside this file
from drift_operator import POLICY, Operator  # type: ignore[import-not-found]  # beside this file
from drift_table import table  # type: ignore[import-not-found]  # beside this file
from planning_bench import emit, lap, subject_of  # type: ignore[import-not-found]  # beside this file
from rap_contract.plan import Plan
from rap_contract.profile import GroupWorkload, Profile, Workload
from rap_contract.windows import PLACES
from rap_operator.replanning.values import RankPage, Reading
from rap_planner.cost import Costs
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of
from rap_planner.search import Planner
from rap_trainer.batch import RawBatch
from rap_trainer.bench.subject import Subject, make_model
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.plan_inputs import model_hash, task_for
from rap_trainer.plans import MEAN_LENGTH, plan_job, synthetic_batch
from rap_trainer.profiling.captured_profile import captured_profile
from rap_trainer.profiling.own_work import own_work, with_own_work
from rap_trainer.replan.remeasuring import MAX_SHARE
from rap_trainer.world import World, join_world, leave_world

GROWTH = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Of the lists, in the steps of the drift."""
FLAT_S, RAMP_S, HOLD_S, BESIDE_S = 60.0, 300.0, 240.0, 300.0
"""The drift: lists as planned for, growing threefold, three times as long, and so beside a neighbour."""
CHUNK_S = 0.2
NEIGHBOUR = 4096
"""Side of the matrices somebody else multiplies: more than an H200's SMs."""
OTHER_LISTS = 0.5
"""Change of their length since the windows were measured, upon which they are measured again."""
AHEAD = 4
"""Products that are enqueued at a time."""


class Neighbour:
    """Somebody else on the same GPU: matrices multiplied by another thread while it is let."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._may, self._over = device, threading.Event(), False
        self._side = torch.randn(NEIGHBOUR, NEIGHBOUR, device=device)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread: one that waits for the device while CUDA goes aborts the process."""
        self._over = True
        self._may.set()
        self._thread.join()

    def let(self, may: bool) -> None:
        if may:
            self._may.set()
        else:
            self._may.clear()

    def _work(self) -> None:
        torch.cuda.set_device(self._device)
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        with torch.cuda.stream(stream):
            while self._may.wait() and not self._over:
                for _ in range(AHEAD):
                    torch.mm(self._side, self._side)
                stream.synchronize()


class Bench:
    """The job on this rank: steps on batches of any of the lengths, beside a neighbour or alone."""

    def __init__(self, subject: Subject, runtime: CapturedRuntime, world: World, *, lengths: tuple[float, ...]) -> None:
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
        self.neighbour = Neighbour(world.device)
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


class Run:
    """The drift, from begin to end, on one rank."""

    def __init__(self, bench: Bench, world: World, operator: Operator | None, *, scale: float, remeasure: bool) -> None:
        self.bench, self.world, self.operator, self.scale, self._remeasure = bench, world, operator, scale, remeasure
        self.chunks: list[Chunk] = []
        self.stalls: list[float] = []
        self._watch = ThreadPoolExecutor(1)
        self._steps = self._seconds = 0.0
        self._known: float | None = None
        self._ratios: deque[float] = deque(maxlen=5)
        self._measured_s, self._measured_length = 0.0, bench.lengths[0]

    def go(self) -> None:
        """Collective."""
        now_s, end_s, lengths = 0.0, FLAT_S + RAMP_S + HOLD_S + BESIDE_S, self.bench.lengths
        number = max(4, 2 * round(CHUNK_S / (self.bench.steps(8) / 8) / 2))
        preparing: Future[None] | None = None
        while now_s < end_s:
            wanted = lengths[0] + (lengths[-1] - lengths[0]) * min(max((now_s - FLAT_S) / RAMP_S, 0.0), 1.0)
            length = min(lengths, key=lambda each: abs(each - wanted))
            beside = now_s >= FLAT_S + RAMP_S + HOLD_S
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
            now_s += seconds * self.scale
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
                self._measure(length, beside=beside)

    def _look(self, now_s: float, length: float, step_s: float) -> dict[str, Any]:
        operator = self.operator
        assert operator is not None
        plan = self.bench.runtime.plan
        assert plan is not None
        operator.plan = plan
        self._ratios.append(step_s / operator.predicted(length))
        costs = Costs(operator.profile)
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
        handed = operator.look(now_s, length, step_s)
        ratio = statistics.median(self._ratios)
        self._known = self._known or ratio
        drifted = len(self._ratios) == 5 and abs(ratio / self._known - 1) > POLICY.triggers.prediction_ratio
        recent = [chunk.length for chunk in self.chunks[-2:]]
        others = min(recent) == max(recent) and abs(length / self._measured_length - 1) >= OTHER_LISTS
        measure = self._remeasure and (drifted or others) and now_s >= self._measured_s
        if measure:
            self._measured_s, self._measured_length = now_s, length
        return {"plan": operator.plans[handed].to_json() if handed else "", "measure": measure}

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

    def _measure(self, length: float, *, beside: bool) -> None:
        began = time.perf_counter()
        found = own_work(self.bench.runtime, self.world)
        self.stalls.append(time.perf_counter() - began)
        self._measured_s += max(POLICY.min_interval_seconds, self.stalls[-1] / MAX_SHARE)
        self._ratios.clear()
        self._known = None
        if self.operator is not None:
            operator = self.operator
            operator.profile = with_own_work(operator.profile, found, predicted_s=operator.inline_s(length))
            steps_ms = {name or "none": round(1e3 * seconds, 3) for name, seconds in found.items()}
            emit(case="measured again", length=length, beside=beside, seconds=self.stalls[-1], steps_ms=steps_ms)


def main() -> None:
    """One drift."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--max-rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128, help="of the tables")
    parser.add_argument("--first-length", type=float, default=20.0, help="of the lists, before they grow threefold")
    parser.add_argument("--scale", type=float, default=30.0)
    parser.add_argument("--profile-seconds", type=float, default=8.0)
    parser.add_argument("--profile", type=Path, default=None, help="of this job, made before; default: it is made now")
    parser.add_argument("--no-remeasure", action="store_true")
    world = join_world(use_gpu=True)
    drift(parser.parse_args(), world)
    leave_world()


def first_profile(
    options: argparse.Namespace, document: dict[str, Any], subject: Subject, runtime: CapturedRuntime, world: World
) -> Profile:
    """What is known before the lists grow. Collective."""
    if options.profile is not None:
        return Profile.from_json(options.profile.read_text())
    return captured_profile(
        document,
        subject.graph,
        runtime.assembled,
        world,
        rows=options.batch,
        mean_length=options.first_length,
        date=time.strftime("%Y-%m-%d"),
        model_hash=model_hash(subject.job),
        seconds=options.profile_seconds,
        grids=(None,),
    )


def drift(options: argparse.Namespace, world: World) -> None:
    """Profile, plan, drift, table, summary. Collective."""
    torch.backends.cuda.matmul.allow_tf32 = True
    document = plan_job(options.plan, max_rows=options.max_rows, batch_size=options.batch, dim=options.dim)
    document["spec"]["trainer"] |= {"gpusPerNode": world.size}
    subject = subject_of(document, SimpleNamespace(**vars(options)), world)
    runtime = CapturedRuntime(make_model(subject, world), subject.graph, world, batch_size=options.batch)
    lap("captured", world)
    lengths = tuple(options.first_length * growth for growth in GROWTH)
    bench = Bench(subject, runtime, world, lengths=lengths)
    lap("batches", world)
    bench.at(lengths[-1])
    bench.at(lengths[0])
    lap("trained", world)
    profile = first_profile(options, document, subject, runtime, world)
    lap("profiled", world)
    owned = runtime.assembly.ownership.owned
    tables = {feature.name: feature.table.name for feature in subject.graph.sparse if feature.table is not None}
    owners = {tables[name]: rank for rank, names in enumerate(owned) for name in names}
    workload = Workload(default=GroupWorkload(mean_list_length=lengths[0]))
    task = task_for(subject.job, profile, workload=workload, owners=owners)
    plan = plan_of(Planner(enumerator=Enumerator.of(profile)).search(task, profile), profile)
    if world.rank == 0:
        predicted = {"predicted_s": plan.prediction.step_seconds, "inline_s": plan.prediction.inline_seconds}
        slots = [(placed.window, placed.programs) for placed in plan.schedule]
        emit(case="planned", plan=plan.hash, length=lengths[0], step_s=profile.step_seconds, slots=slots, **predicted)
    runtime.prepare_plan(plan)
    runtime.switch_plan()
    bench.at(lengths[0])
    operator = Operator(subject.job, profile, plan, owners) if world.rank == 0 else None
    run = Run(bench, world, operator, scale=options.scale, remeasure=not options.no_remeasure)
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
        for beside in (False, True, None):
            chunks = [chunk for chunk in run.chunks if beside is None or chunk.beside is beside]
            stood_s = sum(run.stalls) if beside is None else 0.0
            rates = summary(chunks, steps_s, f"plan {plan.hash}", scale=run.scale, stood_s=stood_s)
            emit(case="drift", plan=options.plan, gpus=world.size, beside=beside, stalls_s=run.stalls, **rates)
    bench.neighbour.close()
    runtime.close()


if __name__ == "__main__":
    main()
