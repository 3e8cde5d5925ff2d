"""A directory of files as a source of training rows.

All ranks have the same rows in one order and each trains its slice of every step, so neither the
number of ranks nor a restart changes which rows a step sees. Reading and decoding happen in a
thread ahead of training, once a node where its ranks share it; positions move only with what is taken.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rap_contract import metrics
from rap_contract.job import RAPJobSpec
from rap_contract.source import Files

from rap_trainer.batch import Position, Positions, RawBatch
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.backlog import Backlog, Consumed
from rap_trainer.stream.bad_rows import BadRows, letters_in
from rap_trainer.stream.catalogue import CatalogueLog, KeyValueStore, LocalStore
from rap_trainer.stream.dead_letters import BadRow, DeadLetter, DeadLetters, LoggedDeadLetters
from rap_trainer.stream.decode import declared
from rap_trainer.stream.discovery import FINISHED, SETTLE_S, Discovery
from rap_trainer.stream.file_follower import FileFollower
from rap_trainer.stream.file_lag import FileLagMeter, file_lag
from rap_trainer.stream.file_reader import FileReader
from rap_trainer.stream.node_sharing import ChunkSender, Sharing
from rap_trainer.stream.open_file import open_file
from rap_trainer.stream.rows import Span, batch_of
from rap_trainer.stream.source import Lag, Offer

_TEXT_SETTLE_S = 1.0  # text has no end mark: a file is read once it has stood still so long


@dataclass(frozen=True, kw_only=True)
class FileSourceOptions:
    """How a rank reads; the job says what."""

    limit_bytes: int = 128 << 20
    """Decoded bytes read ahead; a full step's rows are held even if they are more."""
    settle_s: float = SETTLE_S
    """An unfinished file that has not grown for so long is put aside."""
    sharing: Sharing | None = None
    """The ranks of a node for which its first one reads; None: every rank reads by itself."""


@dataclass(frozen=True, kw_only=True)
class FileCounts:
    """What a source counted so far, for metrics: the first rank's word for all, so that sums over ranks are right."""

    rows: int = 0
    """Rows consumed by all ranks, the bad ones included."""
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    quarantined_files: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    waiting_files: int = 0
    """Files that are known but not finished."""
    buffered_bytes: int = 0
    """Of this rank."""


class FileSource:
    """Implements Source over `spec.source.files`.

    `start` are positions of a checkpoint. `store` is shared by the ranks; one rank needs none.
    """

    def __init__(
        self,
        spec: RAPJobSpec,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: Positions | None = None,
        store: KeyValueStore | None = None,
        options: FileSourceOptions = FileSourceOptions(),  # a frozen value
    ) -> None:
        files = spec.source.files
        assert files is not None
        if world_size > 1 and store is None:
            raise ValueError("several ranks need a shared store for the order of files")
        self._rank, self._world_size = rank, world_size
        self._step_rows = spec.trainer.batch_size_per_gpu * world_size
        self._start = dict(start or {})
        self._positions = dict(self._start)
        self._unsaved: dict[str, Position] = {}
        self._rows = 0
        self._bad = BadRows(files.error_budget, _dead_letters(files) if rank == 0 else None, source="source.files")
        self._lag_meter = FileLagMeter(files.path)
        self._backlog = Backlog(limit_bytes=options.limit_bytes, min_rows=self._step_rows)
        self._discovery = _discovery(spec, self._start, options) if rank == 0 else None
        log = CatalogueLog(store or LocalStore())
        self._reader = _reader(spec, self._backlog, log=log, discovery=self._discovery, sharing=options.sharing)
        self._reader.start()

    def offer(self) -> Offer:
        """Good rows of all ranks that are ready, at most a full step.

        Raises SourceError once the rows before the fault do not fill a step, and DataBudgetExceeded.
        """
        self._account(self._backlog.take_bad_head(), keep_position=False)
        rows, ended, error = self._backlog.available()
        if error is not None and rows < self._step_rows:
            raise error
        if ended and rows == 0:
            self._finish()
        return Offer(rows=min(rows, self._step_rows), ended=ended and error is None and rows <= self._step_rows)

    def shares(self, ready: Sequence[int], *, flush: bool) -> tuple[int, ...] | None:
        """A full step for every rank, or with `flush` what all ranks have, in equal parts to within one row."""
        world_size, rows = len(ready), min(ready)
        if rows < self._step_rows and not (flush and rows > 0):
            return None
        bounds = [rank * rows // world_size for rank in range(world_size + 1)]
        return tuple(bounds[i + 1] - bounds[i] for i in range(world_size))

    def take(self, shares: Sequence[int]) -> RawBatch:
        """This rank's slice of the next `sum(shares)` rows; an empty share gives a batch of 0 rows."""
        num_rows = sum(shares)
        first = sum(shares[: self._rank])
        mine, consumed = self._backlog.take(num_rows, first, first + shares[self._rank])
        self._positions.update(self._unsaved)
        self._unsaved.clear()
        self._account(consumed, keep_position=True)
        if not mine:
            rows = next(c.chunk.rows for c in consumed if c.chunk.rows is not None)
            mine = [Span(rows, 0, 0)]
        return batch_of(mine, num_rows)

    def positions(self) -> Positions:
        """Per file: the next row (FINISHED when there is none), and the file's place in the order.

        The same for all ranks of every file that is begun. Files that are announced and wait are in it too, so
        that a resume keeps their order; of those the first rank knows most. Finished files that are deleted
        are not in the first rank's.
        """
        waiting = {name: Position(record.first_row, record.order) for name, record in self._reader.catalogued().items()}
        positions = {**waiting, **self._positions}
        if self._discovery is not None:
            present = self._discovery.present
            positions = {n: p for n, p in positions.items() if p.offset != FINISHED or n in present}
        return positions

    def settle(self) -> None:
        """Bad rows are with the operating system when it returns."""
        self._bad.flush()

    def counts(self) -> FileCounts:
        """Totals since this source began; nothing on ranks but the first, which see the same rows."""
        if self._rank != 0:
            return FileCounts(buffered_bytes=self._backlog.num_bytes)
        finished = {name for name, position in self._positions.items() if position.offset == FINISHED}
        return FileCounts(
            rows=self._rows,
            bad_rows=dict(self._bad.counts),
            quarantined_files=self._reader.quarantined(),
            waiting_files=len(self._reader.catalogued().keys() - finished),
            buffered_bytes=self._backlog.num_bytes,
        )

    def lag(self) -> Lag:
        """What waits in the directory, estimated; the first rank alone says it, for all ranks read the same files."""
        if self._rank != 0:
            return Lag(records=0)
        decoded_rows, _, _ = self._backlog.available()
        return file_lag(
            self._reader.catalogued(),
            self._positions,
            trained_rows=self._rows,
            decoded_rows=decoded_rows,
            now_s=time.time(),
        )

    def meter(self, store: MetricStore) -> None:
        """The lag on the first rank, and how the error budget stands."""
        store.set(metrics.ERROR_BUDGET_RATIO, self._bad.allowed_ratio)
        store.set(metrics.BAD_RECORDS_RATIO, self._bad.ratio)
        if self._rank == 0:
            self._lag_meter.report(store, self.lag(), trained_rows=self._rows)

    def close(self) -> None:
        """Stops the reader thread and closes the dead letters."""
        self._backlog.close()
        self._reader.join()
        self._bad.close()

    def _finish(self) -> None:
        self._positions.update(self._unsaved)
        self._unsaved.clear()
        self._bad.flush()
        self._bad.check(at_end=True)

    def _account(self, consumed: Sequence[Consumed], *, keep_position: bool) -> None:
        """Counts what was consumed and moves positions: at once, or with the next good row."""
        for part in consumed:
            offset = FINISHED if part.finished else part.next_row
            target = self._positions if keep_position else self._unsaved
            target[part.chunk.unit] = Position(offset, part.chunk.order)
            bad, num_rows = part.bad, part.next_row - part.first_row
            self._rows += num_rows
            self._bad.seen(rows=num_rows, bad_rows=len(bad))
            self._bad.keep([letter_of(part.chunk.unit, row) for row in bad])
        self._bad.check()


def _reader(
    spec: RAPJobSpec, backlog: Backlog, *, log: CatalogueLog, discovery: Discovery | None, sharing: Sharing | None
) -> FileReader | FileFollower:
    if sharing is not None and not sharing.leads:
        return FileFollower(sharing, backlog)
    files = spec.source.files
    assert files is not None
    sender = None if sharing is None else ChunkSender(sharing)
    return FileReader(files, declared(spec), backlog, log=log, discovery=discovery, sender=sender)


def letter_of(unit: str, bad: BadRow) -> DeadLetter:
    """A bad row of a file as a dead letter."""
    return DeadLetter(
        reason=str(bad.reason), detail=bad.detail, unit=unit, position=Position(bad.row), payload=bad.payload
    )


def _dead_letters(files: Files) -> DeadLetters:
    if files.dead_letter is None or files.dead_letter.path is None:
        return LoggedDeadLetters()
    return letters_in(Path(files.dead_letter.path), source="source.files")


def _discovery(spec: RAPJobSpec, start: Positions, options: FileSourceOptions) -> Discovery:
    files = spec.source.files
    assert files is not None
    columns = declared(spec)
    is_text = files.format in ("csv", "tsv")

    def probe(path: Path) -> None:
        open_file(path, files.format, files.csv, columns).close()

    return Discovery(
        Path(files.path),
        probe,
        follow=files.follow,
        start=start,
        whole_on_probe=not is_text,
        settle_s=min(options.settle_s, _TEXT_SETTLE_S) if is_text else options.settle_s,
    )
