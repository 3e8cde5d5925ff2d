"""Commits saved positions to a consumer group, for those who monitor lag there. Best effort: nothing depends on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError, NoError
from kafka.structs import OffsetAndMetadata

log = logging.getLogger(__name__)


class Committer:
    """Commits in a thread with a client of its own, so that a sick coordinator never delays reading."""

    def __init__(self, topic: str, group: str, options: Mapping[str, Any]) -> None:
        self._topic, self._group = topic, group
        self._options = {name: value for name, value in options.items() if name != "metrics_enabled"}
        self._wanted: Mapping[int, int] | None = None
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Asks for these next offsets by partition; newer ones replace those that wait."""
        with self._changed:
            self._wanted = dict(offsets)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rap-kafka-commit", daemon=True)
            self._thread.start()

    def finish(self, seconds: float) -> None:
        """Waits so long at most for what was asked."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is None and not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._wanted is None:
                    self._changed.wait()
                offsets, self._wanted, self._busy = self._wanted, None, True
            try:
                self._commit(offsets)
            except (KafkaError, OSError) as error:
                log.info("offsets of %s are not committed: %s", self._topic, type(error).__name__)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _commit(self, offsets: Mapping[int, int]) -> None:
        admin = KafkaAdminClient(**self._options)
        try:
            asked = {TopicPartition(self._topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}
            refused = {e.__name__ for e in admin.alter_group_offsets(self._group, asked).values() if e is not NoError}
        finally:
            admin.close()
        if refused:
            log.info("offsets of %s are not committed: %s", self._topic, ", ".join(sorted(refused)))
