"""What the runtime adds to a hand-written TorchRec loop, and what checkpoints cost. Prints JSON lines.

`python trainer/benchmarks/runtime_bench.py [--rounds N] [--cases small,plan0]`

*Overhead*: rows/s with tensors ready (no reading, no preprocessing) of RAP's loop - agreement, scoring, freshness,
timing, metrics, reports - and of the shortest loop over the same sharded model: forward, loss, backward, step. Both in
one process, in turn, so that a busy machine slows both; the ratio is that of the medians. *Checkpoints*: the share of
the time that training stands still for them, and the slowdown of the steps meanwhile.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.metrics import TRAINER
from rap_trainer.batch import ModelBatch, Positions, RawBatch
from rap_trainer.checkpoint.fence import Claim
from rap_trainer.checkpoint.layout import JobIdentity
from rap_trainer.checkpoint.writer import CheckpointWriter
from rap_trainer.display import Display
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job
from rap_trainer.program import Program
from rap_trainer.step.loop import Loop, Tools
from rap_trainer.step.loss_watch import LossWatch
from rap_trainer.step.meters import Meters
from rap_trainer.step.reports import Reports
from rap_trainer.step.runtime import EagerRuntime
from rap_trainer.step.saving import Saving
from rap_trainer.step.signals import StopRequest
from rap_trainer.step.stages import training_stages
from rap_trainer.stream.source import Offer
from rap_trainer.synthetic_batch import synthetic_batch
from rap_trainer.world import World, join_world
from torch.nn import functional as F

NUM_BATCHES = 8
"""Different batches that both sides go through in turn."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how many steps a slice has."""

    name: str
    max_rows: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int
    steps: int
    interval_s: float
    """Between checkpoints."""


CASES = {
    "small": Case(
        name="small",
        max_rows=5_000,
        dim=16,
        bottom=(64, 32, 16),
        top=(64, 32, 1),
        batch=1024,
        steps=40,
        interval_s=2.0,
    ),
    "plan0": Case(
        name="plan0",
        max_rows=100_000,
        dim=128,
        bottom=(512, 256, 128),
        top=(1024, 1024, 512, 256, 1),
        batch=4096,
        steps=3,
        interval_s=30.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A point in time, or a length of time, by two clocks."""

    wall_s: float
    cpu_s: float
    """Of this process: what a machine busy with other work hardly changes."""

    @classmethod
    def now(cls) -> Moment:
        return cls(wall_s=time.perf_counter(), cpu_s=time.process_time())

    def __sub__(self, other: Moment) -> Moment:
        return Moment(wall_s=self.wall_s - other.wall_s, cpu_s=self.cpu_s - other.cpu_s)


class ReadySource:
    """A source whose rows are there at once and cost nothing."""

    def __init__(self, batches: Sequence[RawBatch], steps: int | None) -> None:
        self._batches = batches
        self._left = steps
        self._taken = 0

    def offer(self) -> Offer:
        rows = 0 if self._left == 0 else self._batches[0].num_rows
        return Offer(rows=rows, ended=self._left is not None and self._left <= 1)

    def shares(self, ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
        del flush
        return (ready[0],) if ready[0] else None

    def take(self, shares: Sequence[int]) -> RawBatch:
        del shares
        self._taken += 1
        if self._left is not None:
            self._left -= 1
        return self._batches[self._taken % len(self._batches)]

    def positions(self) -> Positions:
        return {}

    def settle(self) -> None:
        """No row is bad."""

    def close(self) -> None:
        """Nothing to stop."""


class Unsaved(Saving):
    """Writes no checkpoint."""

    def is_new(self, step: int) -> bool:
        del step
        return False


class Bench:
    """A model of a case with both loops around it."""

    def __init__(self, case: Case, world: World, folder: Path) -> None:
        self.case = case
        self._world = world
        document = plan_job(0, max_rows=case.max_rows, dim=case.dim)
        spec = document["spec"]
        spec["model"] = {"dlrm": {"bottom": list(case.bottom), "top": list(case.top)}}
        spec["trainer"] = {"batchSizePerGpu": case.batch, "metricsPort": 0}
        spec["checkpoint"] = {"path": str(folder), "intervalSeconds": case.interval_s}
        self.job = RAPJob.model_validate(document)
        graph = _graph(self.job)
        collection = embedding_bag_collection(graph)
        self.model = shard_model(
            build_model(self.job.spec, collection, num_dense=graph.dense_width), self.job.spec, world
        )
        self.raw = [synthetic_batch(document, case.batch, seed=i) for i in range(NUM_BATCHES)]
        program = Program(graph)
        self.ready = {id(raw): program.run(raw) for raw in self.raw}

    def by_hand(self, steps: int) -> Moment:
        """Time of the shortest loop over `steps` steps."""
        model, rows = self.model, self.case.batch
        batches = [self.ready[id(self.raw[i % NUM_BATCHES])] for i in range(steps)]
        began = Moment.now()
        for batch in batches:
            model.zero_grad()
            logits_B = model.forward(batch.dense_BD, batch.sparse)
            loss = F.binary_cross_entropy_with_logits(logits_B, batch.labels_B, reduction="sum") / rows
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            model.update()
        return Moment.now() - began

    def by_loop(self, steps: int) -> Moment:
        """Time of RAP's loop over `steps` steps, its last report included."""
        with StopRequest() as stop:
            loop, _ = self._loop(ReadySource(self.raw, steps), stop, saving=Unsaved)
            began = Moment.now()
            loop.run()
            return Moment.now() - began

    def with_checkpoints(self, seconds: float) -> dict[str, float]:
        """Trains for about `seconds` with checkpoints; stall and slowdown."""
        with StopRequest() as stop:
            loop, tools = self._loop(Timed(self.raw, seconds), stop, saving=Saving)
            began = time.perf_counter()
            loop.run()
            elapsed_s = time.perf_counter() - began
        size_bytes = sum(path.stat().st_size for path in Path(self.job.spec.checkpoint.path).glob("step-*/*.distcp"))
        stall_s = tools.saving.writer.stall_s
        return {
            "seconds": elapsed_s,
            "stall_s": stall_s,
            "stall_share": stall_s / elapsed_s,
            "rows_per_s": loop.rows / elapsed_s,
            "bytes_on_disk": float(size_bytes),
        }

    def _loop(self, source: ReadySource, stop: StopRequest, *, saving: Callable[..., Saving]) -> tuple[Loop, Tools]:
        world, spec = self._world, self.job.spec
        evaluator = Evaluator(spec.evaluation, world.device)
        stages = training_stages(self.model, self._preprocess, evaluator, world_size=1, device=world.device)
        runtime = EagerRuntime(stages, device=world.device)
        root, identity = Path(spec.checkpoint.path), JobIdentity.of(self.job)
        writer = CheckpointWriter(root, identity=identity, world=world, claim=Claim(token=1, attempt=1), keep=1)
        watch, meters = LossWatch(world.device), Meters(MetricStore(TRAINER))
        tools = Tools(
            world=world,
            source=source,
            runtime=runtime,
            saving=saving(root, identity=identity, world=world, model=self.model, evaluator=evaluator, writer=writer),
            watch=watch,
            reports=Reports(
                spec.evaluation, world, evaluator=evaluator, timer=runtime.timer, watch=watch, meters=meters
            ),
            stop=stop,
            display=Display(),
            meters=meters,
            attempt=1,
        )
        return Loop(spec, tools, step=0, rows=0), tools

    def _preprocess(self, raw: RawBatch) -> ModelBatch:
        return self.ready[id(raw)]


class Timed(ReadySource):
    """A ready source that ends after some seconds."""

    def __init__(self, batches: Sequence[RawBatch], seconds: float) -> None:
        super().__init__(batches, None)
        self._until_s = time.monotonic() + seconds

    def offer(self) -> Offer:
        over = time.monotonic() >= self._until_s
        return Offer(rows=0 if over else self._batches[0].num_rows, ended=over)


def main() -> None:
    """Runs every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", default="small,plan0")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    world = join_world(use_gpu=False)
    for name in options.cases.split(","):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(CASES[name], world, Path(folder))
            _overhead(bench, options.rounds)
            _checkpoints(bench)


def _overhead(bench: Bench, rounds: int) -> None:
    steps, rows = bench.case.steps, bench.case.steps * bench.case.batch
    bench.by_hand(steps)
    bench.by_loop(steps)
    pairs = [(bench.by_hand(steps), bench.by_loop(steps)) for _ in range(rounds)]
    hand = statistics.median(rows / mine.wall_s for mine, _ in pairs)
    for side, times in (("hand-written", [a for a, _ in pairs]), ("rap", [b for _, b in pairs])):
        speeds = [rows / spent.wall_s for spent in times]
        quarters = statistics.quantiles(speeds, n=4)
        emit(
            benchmark="runtime_overhead",
            case=bench.case.name,
            side=side,
            rows_per_s=statistics.median(speeds),
            spread=(quarters[2] - quarters[0]) / statistics.median(speeds),
            share_of_hand=statistics.median(speeds) / hand,
            share_of_hand_in_pairs=statistics.median(
                a.wall_s / b.wall_s for (a, _), b in zip(pairs, times, strict=True)
            ),
            cpu_share_of_hand=sum(a.cpu_s for a, _ in pairs) / sum(spent.cpu_s for spent in times),
        )


def _checkpoints(bench: Bench) -> None:
    steps = bench.case.steps
    alone = statistics.median(steps * bench.case.batch / bench.by_loop(steps).wall_s for _ in range(5))
    measured = bench.with_checkpoints(3.3 * bench.case.interval_s)
    emit(
        benchmark="checkpoint_stall",
        case=bench.case.name,
        interval_s=bench.case.interval_s,
        slowdown=1 - measured["rows_per_s"] / alone,
        **measured,
    )


def _graph(job: RAPJob) -> FeatureGraph:
    graph, problems = compile_features(job.spec)
    if graph is None:
        raise ValueError(problems)
    return graph


def emit(**result: Any) -> None:
    """One JSON line."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


if __name__ == "__main__":
    main()
