"""The cpu baseline: worker processes on all cores preprocess with PyTorch; the trainer copies what they send.

The workers are started once a bench and told which plan's batches to run; between cases they wait.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.bench.stock import StockStep
from rap_trainer.bench.subject import Subject
from rap_trainer.cores import usable_cores
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World

AHEAD = 2
"""Batches each worker has in hand."""
START_S = 90
"""For a worker's first batch of a plan: imports, and reading the batches."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where Linux keeps files in memory
JOB, BATCH = "job.json", "batch-{}.pt"


class CpuWorkers:
    """N processes of one CPU thread each: all cores, shared equally by this host's ranks."""

    def __init__(self, world: World) -> None:
        self.number = max(1, usable_cores() // world.local_size - 1)
        context = mp.get_context("spawn")
        self._asked, self._done = context.Queue(), context.Queue()
        self._processes = [
            context.Process(target=_work, args=(self._asked, self._done), daemon=True) for _ in range(self.number)
        ]
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # read by the children as they start
        for process in self._processes:
            process.start()
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
        self._folder: Path | None = None
        self._sent = self._in_hand = 0

    def assign(self, subject: Subject) -> None:
        """The batches to preprocess from now on."""
        self._folder = Path(tempfile.mkdtemp(prefix="rap-bench-", dir=SHARED_MEMORY))
        (self._folder / JOB).write_text(subject.job.model_dump_json(by_alias=True, exclude_none=True))
        for number, raw in enumerate(subject.host):
            torch.save(raw, self._folder / BATCH.format(number))
        self._sent = 0
        for _ in range(self.number * AHEAD):
            self._ask(len(subject.host))

    def _ask(self, batches: int) -> None:
        self._asked.put((str(self._folder), self._sent % batches))
        self._sent += 1
        self._in_hand += 1

    def next(self, batches: int) -> tuple[int, dict[str, torch.Tensor]]:
        """(number, tensors) of the next batch, whichever worker has one first. Raises RuntimeError for a worker's failure."""
        number, tensors = self._receive()
        self._ask(batches)
        return number, tensors

    def _receive(self) -> tuple[int, dict[str, torch.Tensor]]:
        number, tensors = self._done.get(timeout=START_S)
        self._in_hand -= 1
        if isinstance(tensors, str):
            raise RuntimeError(f"a CPU worker failed: {tensors}")
        return number, tensors

    def rest(self) -> None:
        """Takes what is in hand, so that the workers idle."""
        while self._in_hand:
            self._receive()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the workers."""
        for process in self._processes:
            process.terminate()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _work(asked: Any, done: Any) -> None:
    """A worker's life: it ends with the trainer, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    from rap_contract.graph import compile_features
    from rap_contract.job import RAPJob

    from rap_trainer.program import Program

    folder, program = "", None
    batches: dict[int, RawBatch] = {}
    while True:
        place, number = asked.get()
        try:
            if place != folder:
                folder, batches = place, {}
                graph, problems = compile_features(RAPJob.model_validate_json((Path(place) / JOB).read_text()).spec)
                if graph is None:
                    raise ValueError(problems)
                program = Program(graph)
            if number not in batches:
                batches[number] = torch.load(Path(place) / BATCH.format(number), weights_only=False)
            assert program is not None
            batch = program.run(batches[number])
            weights = batch.sparse.weights_or_none()
            tensors = {"dense": batch.dense_BD, "ids": batch.sparse.values(), "lengths": batch.sparse.lengths()}
            tensors |= {"labels": batch.labels_B} | ({} if weights is None else {"weights": weights})
            done.put((number, tensors))
        except Exception as error:
            done.put((number, f"{type(error).__name__}: {error}"))


def cpu_fed(model: ShardedModel, subject: Subject, world: World, workers: CpuWorkers) -> Callable[[], torch.Tensor]:
    """The stock step fed by CPU workers. The first batch of each number is compared with what the ideal trains on."""
    step, keys = StockStep(model, world.size), list(subject.ready[0].sparse.keys())
    unseen = set(range(len(subject.host)))

    def one() -> torch.Tensor:
        number, tensors = workers.next(len(subject.host))
        ready = subject.ready[number]
        moved = {name: each.pin_memory().to(world.device, non_blocking=True) for name, each in tensors.items()}
        if number in unseen:
            unseen.discard(number)
            _expect_equal(moved, ready)
        sparse = KeyedJaggedTensor(
            keys=keys, values=moved["ids"], lengths=moved["lengths"], weights=moved.get("weights")
        )
        return step.train(
            ModelBatch(
                dense_BD=moved["dense"],
                sparse=sparse,
                labels_B=moved["labels"],
                global_rows=ready.global_rows,
                event_times_s_B=ready.event_times_s_B,
            )
        )

    return one


def _expect_equal(moved: dict[str, torch.Tensor], ready: ModelBatch) -> None:
    if not torch.equal(moved["ids"], ready.sparse.values()) or not torch.equal(
        moved["lengths"], ready.sparse.lengths()
    ):
        raise ValueError("the CPU's ids differ from the GPU's")
    torch.testing.assert_close(moved["dense"], ready.dense_BD, rtol=1e-2, atol=1e-2, equal_nan=True)
