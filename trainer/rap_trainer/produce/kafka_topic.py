"""Events as messages of a Kafka topic: many rows each, keyed by their number, every delivery confirmed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from rap_trainer.produce.bad_records import text_share
from rap_trainer.produce.directory import DELIMITERS, as_text, tables
from rap_trainer.produce.events import events
from rap_trainer.produce.options import Produce
from rap_trainer.stream.kafka.client import client_options, require_fast_checksums
from rap_trainer.stream.kafka.settings import Login, MessageFormat

MAX_UNCONFIRMED = 200  # messages on their way: enough to keep brokers busy, few to lose sight of
MAX_MESSAGE_BYTES = 32 << 20  # the broker's own limit is what counts
BOOTSTRAP_S = 30.0  # for a broker to answer


class NotConfirmed(RuntimeError):
    """Brokers did not take every message; says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Where the messages go and how they are cut."""

    bootstrap_servers: tuple[str, ...]
    topic: str
    format: MessageFormat = "arrow"
    rows_per_message: int = 1000
    header: bool = True
    """Text messages begin with the column names."""
    login: Login | None = None

    def __post_init__(self) -> None:
        if self.rows_per_message < 1:
            raise ValueError(f"rows per message must be at least 1, got {self.rows_per_message}")


def write_topic(
    options: Produce,
    topic: Topic,
    *,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
    written: Callable[[int], None] = lambda rows: None,
) -> int:
    """Sends the events; returns their number once brokers have confirmed all of them.

    A message leaves when the last of its events has happened. `written` is called with the confirmed total. Raises
    ValueError where options do not go together, NotConfirmed where a message is not taken, and SourceError.
    """
    if topic.format in DELIMITERS:
        if options.mean_length is not None:
            raise ValueError(f"{topic.format} holds no lists: use arrow or json, or leave out mean length")
        options = replace(options, hex_categories=True)
    require_fast_checksums()
    try:
        producer = KafkaProducer(**_client_options(topic))
    except KafkaError as error:
        raise NotConfirmed(_reason(error, confirmed=0)) from error
    stream = events(text_share(options) if topic.format in DELIMITERS else options, now_s=now_s)
    unconfirmed: list[tuple[Any, int]] = []
    begin_s, total, confirmed = now_s(), 0, 0
    try:
        for number, table in enumerate(tables(stream, topic.rows_per_message)):
            total += table.num_rows
            if options.rate is not None:
                wait_s = begin_s + total / options.rate - now_s()
                if wait_s > 0:
                    sleep(wait_s)
            value = message_value(table, number, options, topic)
            unconfirmed.append((producer.send(topic.topic, value, key=str(number).encode()), table.num_rows))
            if len(unconfirmed) >= MAX_UNCONFIRMED:
                confirmed += _confirmed(unconfirmed)
                written(confirmed)
        return confirmed + _confirmed(unconfirmed)
    except KafkaError as error:
        raise NotConfirmed(_reason(error, confirmed=confirmed)) from error
    finally:
        producer.close(timeout=10)


def _confirmed(unconfirmed: list[tuple[Any, int]]) -> int:
    rows = 0
    for sent, num_rows in unconfirmed:
        sent.get()
        rows += num_rows
    unconfirmed.clear()
    return rows


def _reason(error: KafkaError, *, confirmed: int) -> str:
    match error:
        case MessageSizeTooLargeError():
            hint = "put fewer rows into a message (--rows-per-message), or raise the topic's max.message.bytes"
        case UnknownTopicOrPartitionError() | TopicAuthorizationFailedError():
            hint = "create the topic, and let this user write it"
        case _:
            hint = "see whether brokers run at --kafka and take the log-in of --secrets and --mechanism"
    return f"{type(error).__name__}: {error}; {confirmed:,} rows were confirmed before; hint: {hint}"


def _client_options(topic: Topic) -> dict[str, Any]:
    return {
        **client_options(topic.bootstrap_servers, topic.login),
        "bootstrap_timeout_ms": int(1000 * BOOTSTRAP_S),
        "enable_idempotence": True,
        "allow_auto_create_topics": False,
        "max_request_size": MAX_MESSAGE_BYTES,
        "client_id": "rap-produce",
    }


def message_value(table: pa.Table, number: int, options: Produce, topic: Topic) -> bytes:
    """Some rows as the content of one message."""
    if topic.format == "arrow":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        return bytes(sink.getvalue())
    if topic.format == "json":
        return b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
    return as_text(table, number, options, delimiter=DELIMITERS[topic.format], header=topic.header)
