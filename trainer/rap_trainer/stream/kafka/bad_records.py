"""What becomes of a topic's bad records: counted by reason, kept as dead letters, bounded by the job's error budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rap_contract.source import Kafka

from rap_trainer.stream.dead_letters import BadRow, DeadLetter, DeadLetters, FileDeadLetters, LoggedDeadLetters
from rap_trainer.stream.error_budget import ErrorBudgetWindow
from rap_trainer.stream.kafka.chunks import MessageChunk
from rap_trainer.stream.kafka.client import client_options
from rap_trainer.stream.kafka.dead_letter_topic import TopicDeadLetters
from rap_trainer.stream.kafka.settings import login_of
from rap_trainer.stream.source import DataBudgetExceeded, SourceError


class BadRecords:
    """Records of one rank. The budget's window is over the rows of all ranks, in the order in which ranks agree."""

    def __init__(self, kafka: Kafka) -> None:
        budget = kafka.error_budget
        self._budget = ErrorBudgetWindow(ratio=budget.ratio, window_rows=budget.window_rows)
        self._letters = _dead_letters(kafka)
        self._newest = ""
        self._heard = (0, 0)
        self._seen = 0
        self.rows: Counter[str] = Counter()
        """By reason."""

    @property
    def allowed_ratio(self) -> float:
        return self._budget.ratio

    @property
    def ratio(self) -> float:
        """Share of bad rows in the job's window."""
        return self._budget.bad_rows / max(1, self._budget.rows)

    @property
    def kept(self) -> Mapping[str, int]:
        """Dead letters of a topic, by destination."""
        return dict(self._letters.kept) if isinstance(self._letters, TopicDeadLetters) else {}

    @property
    def failed(self) -> int:
        """Dead letters that their topic did not take."""
        return self._letters.failed if isinstance(self._letters, TopicDeadLetters) else 0

    def add(self, chunk: MessageChunk, bad: Sequence[BadRow], *, rows: int) -> None:
        """Notes `rows` consumed rows of a chunk with the `bad` ones among them. Raises SourceError."""
        numbers = [chunk.num_rows_of(each) for each in bad]
        self._seen += rows
        if not bad:
            return
        for each, number in zip(bad, numbers, strict=True):
            self.rows[str(each.reason)] += number
        self._newest = bad[-1].detail
        try:
            self._letters.write([_letter(chunk, each) for each in bad])
        except OSError as error:
            hint = "hint: make room for dead letters, or leave source.kafka.deadLetter out"
            raise SourceError(f"bad records cannot be kept: {error.strerror}; {hint}") from error

    @property
    def totals(self) -> tuple[int, int]:
        """Rows this rank has consumed, and the bad ones among them."""
        return self._seen, sum(self.rows.values())

    def hear(self, rows: int, bad_rows: int) -> None:
        """The totals of all ranks. Raises DataBudgetExceeded on those that had bad rows, for they know what was wrong."""
        before_rows, before_bad = self._heard
        self._heard = rows, bad_rows
        self._budget = self._budget.after(rows=rows - before_rows, bad_rows=bad_rows - before_bad)
        if self._budget.exceeded and self.rows:
            counts = ", ".join(f"{reason}: {count}" for reason, count in sorted(self.rows.items()))
            hint = "hint: see the dead letters, mend the producer, or raise source.kafka.errorBudget"
            raise DataBudgetExceeded(f"{self._budget} (here {counts}; the newest: {self._newest}); {hint}")

    def flush(self) -> None:
        """Returns when all letters are durable. Raises SourceError."""
        self._letters.flush()

    def close(self) -> None:
        """Flushes and releases."""
        self._letters.close()


def _letter(chunk: MessageChunk, bad: BadRow) -> DeadLetter:
    return DeadLetter(
        reason=str(bad.reason),
        detail=bad.detail,
        unit=chunk.unit,
        position=chunk.position(bad.row),
        payload=bad.payload,
    )


def _dead_letters(kafka: Kafka) -> DeadLetters:
    wanted = kafka.dead_letter
    if wanted is None or (wanted.topic is None and wanted.path is None):
        return LoggedDeadLetters()
    directory = None if wanted.path is None else Path(wanted.path)
    if wanted.topic is not None:
        login = None if kafka.auth is None else login_of(kafka.auth)
        return TopicDeadLetters(
            wanted.topic, lambda: client_options(kafka.bootstrap_servers, login), directory=directory
        )
    assert directory is not None
    try:
        return FileDeadLetters(directory)
    except OSError as error:
        hint = "hint: correct source.kafka.deadLetter.path, or leave it out"
        raise SourceError(f"{directory}: {error.strerror}; {hint}") from error
