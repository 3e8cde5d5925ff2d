"""The reader thread of a file source: follows the catalogue and fills the backlog.

On the first rank it also writes the catalogue. Where ranks of a node share a reader it gives them what it decodes.
It decides nothing about batches.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rap_contract.source import Files

from rap_trainer.stream.backlog import Backlog, Chunk
from rap_trainer.stream.catalogue import CatalogueLog, Kind, Record
from rap_trainer.stream.chunk_message import End
from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.decode import Declared, Decoder
from rap_trainer.stream.discovery import Discovery
from rap_trainer.stream.file_format import FileProblem, Piece
from rap_trainer.stream.node_sharing import ChunkSender
from rap_trainer.stream.open_file import open_file, wanted_columns
from rap_trainer.stream.source import SourceError
from rap_trainer.stream.step_ends import StepEnds
from rap_trainer.world import PeerLost

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between two looks for new files; doubles while nothing comes
SHARED_VIEW_S = 90.0  # an NFS client may believe for 60 s that a new file is not there (acdirmax, nfs(5))


class FileReader:
    """Reads in a thread of its own from `start` to `Backlog.close`."""

    def __init__(
        self,
        files: Files,
        declared: Declared,
        backlog: Backlog,
        *,
        log: CatalogueLog,
        discovery: Discovery | None,
        sender: ChunkSender | None = None,
    ) -> None:
        """`discovery`: on the first rank of all. `sender`: where other ranks of the node wait for the same rows."""
        self._files, self._declared, self._backlog, self._log = files, declared, backlog, log
        self._ends = StepEnds(backlog.min_rows)
        self._sender = sender
        self._discovery = discovery
        path = Path(files.path)
        self._directory = path.parent if path.is_file() else path
        self._lock = threading.Lock()
        self._files_seen: dict[str, Record] = {}
        self._quarantined: Counter[str] = Counter()
        self._converter = ThreadPoolExecutor(1, "rap-file-converter")
        self._late: tuple[Future[Chunk], bool] | None = None
        """The newest chunk that is not put yet, and whether it is its file's last."""
        self._decoder: tuple[pa.Schema, Decoder] | None = None
        self._thread = threading.Thread(target=self._run, name="rap-file-reader", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._thread.start()

    def join(self) -> None:
        """Returns when the thread has ended; close the backlog first."""
        if self._sender is not None:
            self._sender.stop()
        if self._thread.is_alive():
            self._thread.join()

    def catalogued(self) -> dict[str, Record]:
        """Every file of this run that has been announced so far, by name."""
        with self._lock:
            return dict(self._files_seen)

    def quarantined(self) -> dict[str, int]:
        """Files put aside, by reason."""
        with self._lock:
            return dict(self._quarantined)

    def _run(self) -> None:
        try:
            if self._sender is not None:
                self._sender.begin()
            for record in self._records():
                if record.kind is Kind.ERROR:
                    raise SourceError(record.message)
                if record.kind is Kind.QUARANTINED:
                    self._count_quarantined(record.name, record.reason, record.message)
                elif not self._read(record):
                    return
            if self._backlog.closed:  # asked to stop: the stream has not ended, and nobody may be told so
                return
            self._put_late()
            self._backlog.end()
            self._tell(End())
        except BaseException as error:  # handed to the training loop, which raises it
            self._end(error)
        finally:
            self._converter.shutdown()
            if self._sender is not None:
                self._sender.close()

    def _end(self, error: BaseException) -> None:
        """The rows before the fault are trained before it is raised."""
        try:
            self._put_late()
        except BaseException as earlier:  # of the same stream, so it comes first
            error = earlier
        self._backlog.end(error)
        if isinstance(error, Exception) and not isinstance(error, PeerLost):
            with suppress(PeerLost, SourceError):  # then they see the connection close
                self._tell(End(error=error))

    def _tell(self, value: Chunk | End) -> None:
        """Gives the other ranks of the node what this one has got."""
        if self._sender is not None:
            self._sender.send(value)

    def _records(self) -> Iterator[Record]:
        """Records of the catalogue until its end; as first rank, writes them as files appear."""
        number, pause_s = 0, FIRST_PAUSE_S
        if self._discovery is not None:
            self._publish(self._discovery.resumed())
        while not self._backlog.closed:
            record = self._log.get(number)
            if record is None:
                self._put_late()
                found = self._discovery is not None and self._publish(self._discovery.scan(time.monotonic()))
                if not found:
                    self._backlog.pause(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            number, pause_s = number + 1, FIRST_PAUSE_S
            if record.kind is Kind.END:
                return
            if record.kind is Kind.FILE:
                with self._lock:
                    self._files_seen[record.name] = record
            yield record

    def _publish(self, records: list[Record]) -> bool:
        for record in records:
            self._log.append(record)
        return bool(records)

    def _read(self, record: Record) -> bool:
        """Puts all rows of a file; False when the backlog was closed. One chunk is held back to know the last."""
        held: Future[Chunk] | None = None
        try:
            for chunk in self._chunks(record):
                if held is not None and not self._put(held):
                    return False
                held = chunk
        except FileProblem as problem:  # content is the same for all ranks, so they all stop at the same row
            self._count_quarantined(record.name, problem.reason, str(problem))
        if held is None:
            held = self._converter.submit(_empty_chunk, record)
        return self._put(held, last=True)

    def _put(self, chunk: Future[Chunk], *, last: bool = False) -> bool:
        """Puts the chunk before this one, which is still being converted while the next piece is read."""
        is_open = self._put_late()
        self._late = (chunk, last)
        return is_open

    def _put_late(self) -> bool:
        """Puts the chunk that was left, if any; False when the backlog was closed."""
        if self._late is None:
            return True
        (late, last), self._late = self._late, None
        chunk = replace(late.result(), last=True) if last else late.result()
        if not self._backlog.put(chunk):
            return False
        self._ends.passed(chunk.num_good - chunk.num_rows)
        self._tell(chunk)
        return True

    def _chunks(self, record: Record) -> Iterator[Future[Chunk]]:
        """The file's chunks, the newest being converted in a thread of its own."""
        path = self._directory / record.name
        self._await_visible(path, record.size_bytes)
        with closing(open_file(path, self._files.format, self._files.csv, self._declared, ends=self._ends)) as file:
            decoder = self._decoder_of(file.schema, path)
            base = unit_id(record.name)
            for piece in file.pieces(wanted_columns(self._declared), record.first_row):
                self._ends.passed(piece.num_rows)
                yield self._converter.submit(decode_piece, decoder, piece, record=record, unit_base=base)

    def _decoder_of(self, schema: pa.Schema, path: Path) -> Decoder:
        """A new one where the schema is not that of the file before. Raises SchemaMismatch."""
        if self._decoder is None or not schema.equals(self._decoder[0]):
            self._decoder = schema, Decoder(self._declared, schema, str(path))
        return self._decoder[1]

    def _await_visible(self, path: Path, size_bytes: int) -> None:
        """Returns once the file is here as the first rank saw it; raises SourceError when it does not come."""
        patience_s = 0.0 if self._discovery is not None else SHARED_VIEW_S
        deadline_s = time.monotonic() + patience_s
        while (fault := _fault(path, size_bytes)) is not None:
            if time.monotonic() >= deadline_s or self._backlog.closed:
                raise SourceError(f"{path}: {fault}")
            self._backlog.pause(LONGEST_PAUSE_S)

    def _count_quarantined(self, name: str, reason: str, message: str) -> None:
        logger.warning("put aside (%s): %s", reason, message)
        with self._lock:
            self._quarantined[reason] += 1


def _fault(path: Path, size_bytes: int) -> str | None:
    """What is wrong with a file that was catalogued with this size."""
    try:
        now_bytes = path.stat().st_size
    except OSError as error:
        hint = "hint: every rank must see the same directory, and files stay until they are read"
        return f"catalogued, but here: {error.strerror}; {hint}"
    if now_bytes != size_bytes:
        return f"grew or shrank from {size_bytes} to {now_bytes} bytes; hint: write a new file instead of changing one"
    return None


def unit_id(name: str) -> int:
    """A number of 62 bits that stands for a unit; row ids of its rows count on from it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 2


def decode_piece(decoder: Decoder, piece: Piece, *, record: Record, unit_base: int) -> Chunk:
    """The piece decoded, its rows numbered as in the file."""
    if piece.row_numbers is None:
        first_id = unit_base + piece.first_row
        row_ids = np.arange(first_id, first_id + piece.batch.num_rows)
    else:
        row_ids = piece.row_numbers + unit_base
    decoded = decoder.decode(piece.batch, row_ids=row_ids, event_time_s=record.modified_s, owned=piece.owned)
    found = [replace(bad, row=int(row_ids[bad.row]) - unit_base) for bad in decoded.bad]
    return Chunk(
        unit=record.name,
        order=record.order,
        first_row=piece.first_row,
        num_rows=piece.num_rows,
        rows=decoded.rows if decoded.rows.num_rows else None,
        kept_rows=piece.row_numbers if decoded.kept_rows is None else row_ids[decoded.kept_rows] - unit_base,
        bad=tuple(sorted([*piece.bad, *found], key=_row)),
        last=False,
    )


def _row(bad: BadRow) -> int:
    return bad.row


def _empty_chunk(record: Record) -> Chunk:
    return Chunk(
        unit=record.name,
        order=record.order,
        first_row=record.first_row,
        num_rows=0,
        rows=None,
        kept_rows=None,
        bad=(),
        last=True,
    )
