"""Dead letters as messages of a Kafka topic, by an idempotent producer; a directory takes over while it cannot be had.

A message's value is the bad record as it came; its headers say why and where from. A record may come twice after a
crash or an outage, with the same origin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from rap_trainer.stream.dead_letters import DeadLetter, FileDeadLetters
from rap_trainer.stream.source import SourceError

log = logging.getLogger(__name__)

DELIVERY_S = 10.0  # of a letter before the directory takes it: training waits for it at a checkpoint
RETRY_AFTER_S = 60.0  # while the directory takes letters: each try may hold training up for DELIVERY_S
CLOSE_S = 1.0  # for a producer whose records are all settled
MAX_MESSAGE_BYTES = 32 << 20  # a bad message may be as large as a good one


class TopicDeadLetters:
    """Implements DeadLetters. Not thread-safe."""

    def __init__(self, topic: str, options: Callable[[], Mapping[str, Any]], *, directory: Path | None) -> None:
        self._topic, self._options, self._directory = topic, options, directory
        self._producer: Any = None
        self._file: FileDeadLetters | None = None
        self._pending: list[tuple[Any, DeadLetter]] = []
        self._retry_s = 0.0
        self.kept: dict[str, int] = {"topic": 0, "file": 0}
        """Letters by destination."""
        self.failed = 0
        """Letters that the topic did not take."""

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Sends the letters; those that cannot be sent go to the directory. Raises SourceError without one."""
        for letter in letters:
            if self._file is not None and time.monotonic() < self._retry_s:
                self._keep_in_file(letter)
                continue
            try:
                if self._producer is None:
                    self._producer = self._open()
                sent = self._producer.send(self._topic, value=letter.payload, headers=headers(letter))
            except (KafkaError, OSError) as error:
                self._fall_back(letter, error)
            else:
                self._pending.append((sent, letter))

    def flush(self) -> None:
        """Waits until the brokers have all letters, or the directory."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            self._producer.flush(timeout=DELIVERY_S)
        except KafkaError as error:
            log.warning("dead letters for topic %s are late: %s", self._topic, type(error).__name__)
        failed: list[tuple[DeadLetter, KafkaError]] = []
        for sent, letter in pending:
            try:
                sent.get(timeout=0.001)
                self.kept["topic"] += 1
            except KafkaError as error:
                failed.append((letter, error))
        if failed:
            self._abandon()
        for letter, reason in failed:
            self._fall_back(letter, reason)
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flushes and closes; idempotent."""
        try:
            self.flush()
        finally:
            self._abandon()
            if self._file is not None:
                self._file.close()

    def _abandon(self) -> None:
        """Ends the producer. One that could not deliver would keep its records and take no others, for as long as it lives."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._sender.force_close()  # close() alone waits for those records, and then leaves its thread running
        with suppress(KafkaError):
            producer.close(timeout=CLOSE_S)

    def _open(self) -> Any:
        return KafkaProducer(
            **self._options(),  # secrets as they are now
            enable_idempotence=True,
            delivery_timeout_ms=int(1000 * DELIVERY_S),
            request_timeout_ms=int(500 * DELIVERY_S),
            max_block_ms=int(1000 * DELIVERY_S),
            bootstrap_timeout_ms=int(1000 * DELIVERY_S),
            max_request_size=MAX_MESSAGE_BYTES,
            allow_auto_create_topics=False,
            client_id="rap-dead-letters",
        )

    def _fall_back(self, letter: DeadLetter, error: Exception) -> None:
        self.failed += 1
        if self._directory is None:
            hint = "hint: create it and let this user write it, or set deadLetter.path for when it cannot be written"
            raise SourceError(
                f"bad records cannot be kept: dead-letter topic {self._topic}: {type(error).__name__}; {hint}"
            ) from error
        if self._file is None:
            log.warning("dead letters go to %s: topic %s: %s", self._directory, self._topic, type(error).__name__)
            self._file = FileDeadLetters(self._directory)
        self._retry_s = time.monotonic() + RETRY_AFTER_S
        self._keep_in_file(letter)

    def _keep_in_file(self, letter: DeadLetter) -> None:
        assert self._file is not None
        self._file.write([letter])
        self.kept["file"] += 1


def headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """Why a letter is dead, and where it came from."""
    topic, _, partition = letter.unit.rpartition("/")
    facts = {
        "rap.reason": letter.reason,
        "rap.detail": letter.detail,
        "rap.topic": topic,
        "rap.partition": partition,
        "rap.offset": str(letter.position.offset),
        "rap.row": str(letter.position.row),
    }
    return [(name, value.encode("utf-8", "replace")) for name, value in facts.items()]
