"""Writes checkpoints beside training: a copy of the state at a step boundary, everything else in a thread.

All ranks call `start` after the same step. The thread writes aside, syncs, verifies and commits by a rename; training
waits only for the copy, and for a write that has not ended when the next is due. Its priority is training's: a thread of
less is held back while it has the interpreter's lock, and training with it. Not here: when one is due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from rap_trainer.batch import Positions
from rap_trainer.checkpoint import commit
from rap_trainer.checkpoint.errors import CheckpointError, Poisoned, WriteFailed
from rap_trainer.checkpoint.fence import Claim
from rap_trainer.checkpoint.layout import WRITING, FileDigest, JobIdentity, Manifest
from rap_trainer.checkpoint.rank_state import RankState, file_name, write_rank_state
from rap_trainer.checkpoint.tensors import Snapshot, Tensors, local_parts
from rap_trainer.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a checkpoint says besides its tensors."""

    step: int
    rows: int
    rollbacks: int
    time_s: float
    positions: Positions
    """Of this rank, after the rows of `step`."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """How a write ended."""

    step: int
    positions: Positions
    """Of this rank, as saved."""
    time_s: float
    """Unix time of the snapshot."""
    seconds: float
    """From the snapshot to the commit."""
    size_bytes: int
    error: Exception | None = None


class CheckpointWriter:
    """One write at a time. Not thread-safe."""

    def __init__(self, root: Path, *, identity: JobIdentity, world: World, claim: Claim, keep: int) -> None:
        self._root = root
        self._identity = identity
        self._world = world
        self._claim = claim
        self._keep = keep
        self._snapshot = Snapshot(world.checkpoint_group)
        self._thread: threading.Thread | None = None
        self._ended: Written | None = None
        self.stall_s = 0.0
        """How long training has waited for this writer."""

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, moment: Moment, tensors: Tensors) -> Written | None:
        """Copies the state and writes it in the background; gives the result of the write before, if any."""
        began = time.perf_counter()
        before = self.wait()
        copies = self._snapshot.take(tensors)
        state = RankState.now(moment.positions)
        self._thread = threading.Thread(
            target=self._run, args=(moment, copies, state), name="checkpoint-writer", daemon=True
        )
        self._thread.start()
        self.stall_s += time.perf_counter() - began
        return before

    def poll(self) -> Written | None:
        """The result of a write that has ended, once; None otherwise. Never blocks."""
        return None if self.busy else self._collect()

    def wait(self) -> Written | None:
        """Waits for the write under way, if any; gives its result, once."""
        if self._thread is not None:
            self._thread.join()
        return self._collect()

    def _collect(self) -> Written | None:
        ended, self._ended, self._thread = self._ended, None, None
        return ended

    def _run(self, moment: Moment, copies: Tensors, state: RankState) -> None:
        began = time.perf_counter()
        size_bytes, error = 0, None
        try:
            size_bytes = self._write(moment, copies, state)
        except Exception as caught:  # handed to the training thread, which decides
            error = caught
        seconds = time.perf_counter() - began
        self._ended = Written(
            step=moment.step,
            positions=moment.positions,
            time_s=moment.time_s,
            seconds=seconds,
            size_bytes=size_bytes,
            error=error,
        )

    def _write(self, moment: Moment, copies: Tensors, state: RankState) -> int:
        aside = self._root / f"{WRITING}{moment.step:010d}-{self._claim.token}"
        try:
            self._together(lambda: self._prepare(aside, copies, state))
            self._save(aside, copies)
            parts = self._together(lambda: self._digests(aside))
            files = {name: digest for part in parts for name, digest in part.items()}
            manifest = Manifest(
                job=self._identity,
                step=moment.step,
                rows=moment.rows,
                rollbacks=moment.rollbacks,
                attempt=self._claim.attempt,
                world_size=self._world.size,
                time_s=moment.time_s,
                files=files,
            )
            self._together(lambda: self._commit(aside, manifest))
            return manifest.size_bytes
        except CheckpointError:
            if self._world.rank == 0:
                commit.discard(aside)
            raise

    def _prepare(self, aside: Path, copies: Tensors, state: RankState) -> None:
        refuse_nonfinite(copies)
        aside.mkdir(parents=True, exist_ok=True)
        write_rank_state(aside, self._world.rank, state)

    def _save(self, aside: Path, copies: Tensors) -> None:
        try:
            dcp.save(
                dict(copies),
                storage_writer=dcp.FileSystemWriter(aside, sync_files=True),
                planner=dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self._world.checkpoint_group,
            )
        except CheckpointException as error:
            rank, (cause, _) = next(iter(sorted(error.failures.items())))
            raise self._write_failed(f"rank {rank}: {cause}") from error

    def _digests(self, aside: Path) -> dict[str, FileDigest]:
        rank = self._world.rank
        names = [file_name(rank), *(path.name for path in aside.glob(f"__{rank}_*.distcp"))]
        if rank == 0:
            names.append(".metadata")
        return {name: FileDigest.of(aside / name) for name in names}

    def _commit(self, aside: Path, manifest: Manifest) -> None:
        if self._world.rank == 0:
            commit.commit(self._root, aside, manifest, claim=self._claim, keep=self._keep)

    def _together(self, act: Callable[[], T]) -> list[T]:
        """Runs a part on every rank and raises everywhere if it failed anywhere."""
        outcome: T | Exception
        try:
            outcome = act()
        except CheckpointError as error:
            outcome = error
        except OSError as error:
            outcome = self._write_failed(f"rank {self._world.rank}: {error}")
        outcomes: list[T | Exception] = [outcome] * self._world.size
        dist.all_gather_object(outcomes, outcome, group=self._world.checkpoint_group)
        for found in outcomes:
            if isinstance(found, Exception):
                raise found
        return [found for found in outcomes if not isinstance(found, Exception)]

    def _write_failed(self, message: str) -> WriteFailed:
        hint = "free space or give spec.checkpoint.path another volume; the checkpoints before stay good"
        return WriteFailed(f"cannot write a checkpoint to {self._root}: {message}; {hint}")


def refuse_nonfinite(copies: Tensors) -> None:
    """Raises Poisoned naming a tensor with NaN or Inf."""
    for name, tensor in copies.items():
        for part in local_parts(tensor):
            if part.is_floating_point() and not torch.isfinite(part.sum(dtype=torch.float64)):
                raise Poisoned(f"the state holds NaN or Inf in {name}; it is not saved")
