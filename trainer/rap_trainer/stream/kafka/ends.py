"""Watches where partitions end, beside reading: lag must be right most of all while the reader waits for training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from rap_trainer.stream.kafka.start import topic_identity

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0  # as often as training reports
IDENTITY_EVERY = 5  # looks: a topic made anew keeps nobody waiting, but is told before much of it is trained
ANSWER_MS = 5_000  # of the brokers; then the next look


class EndsWatch:
    """A thread with a consumer of its own, which never fetches. Sends {partition: end} over `link`.

    The end is that of what readers may see: with `read_committed`, where the oldest open transaction begins.
    """

    def __init__(self, topic: str, options: dict[str, Any], client: Mapping[str, Any], link: Connection) -> None:
        self._topic, self._options, self._client, self._link = topic, options, client, link
        self.identity = ""
        """The topic's id as of a few seconds ago; empty while unknown."""
        self._partitions: frozenset[int] = frozenset()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, partitions: Iterable[int]) -> None:
        """These partitions from now on."""
        self._partitions = frozenset(partitions)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rap-kafka-ends", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        consumer: KafkaConsumer | None = None
        looks = 0
        while not self._ended.wait(0 if consumer is None else LOOK_EVERY_S):
            try:
                if looks % IDENTITY_EVERY == 0:
                    self.identity = topic_identity(self._topic, self._client) or self.identity
                looks += 1
                if consumer is None:
                    consumer = KafkaConsumer(**self._options)
                keys = [TopicPartition(self._topic, partition) for partition in self._partitions]
                ends = consumer.end_offsets(keys, timeout_ms=ANSWER_MS)
                self._link.send({key.partition: end for key, end in ends.items()})
            except KafkaError as error:
                log.debug("ends of %s are not known: %s", self._topic, type(error).__name__)
                self._ended.wait(LOOK_EVERY_S)
            except OSError:
                return  # the parent is gone
