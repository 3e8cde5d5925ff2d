"""One rank of a bench: a plan's batches, shared by its cases, and each case from a model that equals every other's."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from rap_trainer.bench import eager, stock
from rap_trainer.bench.ablation import captured_modules
from rap_trainer.bench.captured import CapturedIdeal, Rap
from rap_trainer.bench.compiled import compiled
from rap_trainer.bench.cpu_workers import CpuWorkers, cpu_fed
from rap_trainer.bench.measure import Effort, Measurement, Stopwatch
from rap_trainer.bench.subject import HostedModel, Subject, make_model, make_subject
from rap_trainer.bench.units import Unit
from rap_trainer.captured.schedule import Window
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World

Step = Callable[[], torch.Tensor]
HOSTED: dict[str, Callable[[ShardedModel, Subject, World], Step]] = {
    "loop": stock.ideal,
    "sequential": stock.sequential,
    "pipeline": eager.staged_pipeline,
    "compile": compiled,
    "rap-eager": eager.rap_eager,
}
"""Cases that the host drives and that give this rank's share of the loss; they take one model in turn."""


class RankBench:
    """Cases on this rank; all ranks make the same calls."""

    def __init__(
        self, world: World, *, max_rows: int, precision: str, effort: Effort, timelines: Path | None = None
    ) -> None:
        self.world = world
        self._max_rows, self._precision = max_rows, precision
        self._watch = Stopwatch(effort, world.device, timelines, rank=world.rank)
        self._subject: Subject | None = None
        self._hosted: HostedModel | None = None
        self._workers: CpuWorkers | None = None

    def any_rank(self, flag: bool) -> bool:
        """Whether any rank says so."""
        said = torch.tensor([int(flag)], device=self.world.device)
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def is_new(self, unit: Unit) -> bool:
        """Whether a unit needs batches that are not there yet."""
        subject = self._subject
        return subject is None or (subject.plan, subject.batch_size) != (unit.plan, unit.batch)

    def run(self, unit: Unit) -> Iterator[Measurement]:
        """The measurements of one unit. Raises CannotCapture or Refused where the case cannot be, on all ranks."""
        if self.is_new(unit):
            self._subject = self._hosted = None
            _forget()
            self._subject = make_subject(unit.plan, unit.batch, self.world, max_rows=self._max_rows)
        assert self._subject is not None
        self._watch.subject = f"plan{unit.plan}_{unit.batch}"
        _forget()
        torch.cuda.reset_peak_memory_stats()
        kind, _, option = unit.case.partition(":")
        if kind in HOSTED or kind == "cpu":
            yield self._hosted_case(kind, self._subject)
        elif kind == "pipeline-ideal":
            yield self._pipeline_ideal(self._subject)
        elif kind == "captured-modules":
            yield self._modules(self._subject)
        elif kind == "captured":
            yield self._captured(unit.case, option, self._subject)
        elif kind == "rap":
            yield from self._rap(option, self._subject)
        else:
            raise ValueError(f"there is no case {unit.case}")

    def close(self) -> None:
        """Ends the CPU workers."""
        if self._workers is not None:
            self._workers.close()

    def _hosted_case(self, kind: str, subject: Subject) -> Measurement:
        began = time.perf_counter()
        if self._hosted is None:
            self._hosted = HostedModel(subject, self.world)
        model = self._hosted.reset()
        more: dict[str, float] = {}
        if kind == "cpu":
            if self._workers is None:
                self._workers = CpuWorkers(self.world)
            self._workers.assign(subject)
            step = cpu_fed(model, subject, self.world, self._workers)
            more["workers"] = self._workers.number
        else:
            step = HOSTED[kind](model, subject, self.world)
        losses = self._watch.losses(step)
        more["prepare_s"] = round(time.perf_counter() - began, 2)
        measurement = self._watch.measure(kind, step, rows=self._rows(subject), losses=losses, **more)
        if kind == "cpu" and self._workers is not None:
            self._workers.rest()
        return measurement

    def _pipeline_ideal(self, subject: Subject) -> Measurement:
        self._hosted = None  # TorchRec's pipeline rewrites its model's forward
        model = make_model(subject, self.world)
        step = stock.pipelined_ideal(model, subject, self.world)
        return self._watch.measure("pipeline-ideal", step, rows=self._rows(subject), losses=())

    def _modules(self, subject: Subject) -> Measurement:
        self._hosted = None
        step = captured_modules(make_model(subject, self.world), subject, self.world)
        return self._watch.measure("captured-modules", step, rows=self._rows(subject), losses=())

    def _captured(self, case: str, option: str, subject: Subject) -> Measurement:
        self._hosted = None
        exchange, *without = option.split("+")
        model = make_model(subject, self.world)
        ideal = CapturedIdeal(
            model,
            self.world,
            batch_size=subject.batch_size,
            exchange=exchange or "auto",
            precision=self._precision,
            sort_early="late" not in without,
            in_parts="whole" not in without,
            direct="apart" not in without,
            subject=subject,
        )
        names = [feature.name for feature in subject.graph.sparse]
        turn = 0

        def train() -> float:
            nonlocal turn
            turn += 1
            return ideal.train(subject.ready[(turn - 1) % len(subject.ready)], names)

        losses = self._watch.losses(train)
        measurement = self._watch.measure(case, ideal.one(), rows=self._rows(subject), losses=losses)
        ideal.graphs.close()
        return measurement

    def _rap(self, option: str, subject: Subject) -> Iterator[Measurement]:
        self._hosted = None
        rap = Rap(make_model(subject, self.world), subject, self.world, precision=self._precision)
        losses = self._watch.losses(rap.step)
        rap.runtime.fit()
        for place in option.split("+"):
            window, _, programs = place.partition("/")
            rap.switch(Window(window), int(programs) or None)
            rap.host_s.clear()
            measured = self._watch.measure(f"rap:{place}", rap.step, rows=self._rows(subject), losses=losses)
            yield Measurement(case=measured.case, result={**measured.result, **_host_parts(rap)})
        rap.runtime.close()

    def _rows(self, subject: Subject) -> int:
        return subject.batch_size * self.world.size


def _host_parts(rap: Rap) -> dict[str, float]:
    prepare, train = zip(*rap.host_s, strict=True)
    return {
        "prepare_ms": round(statistics.median(prepare) * 1e3, 4),
        "train_ms": round(statistics.median(train) * 1e3, 4),
    }


def _forget() -> None:
    """Frees what earlier cases held: models lie in reference cycles."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
