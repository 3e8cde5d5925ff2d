"""Where reading begins: which partitions are this rank's, and at which message of each.

A checkpoint's places count if what they want is still there; without one the job's `startFrom` does; a partition that
a checkpoint does not know is new and read from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from rap_trainer.stream.kafka.assignment import own_partitions
from rap_trainer.stream.kafka.frames import Place, ReaderOptions
from rap_trainer.stream.kafka.settings import TopicSettings


class StartError(Exception):
    """Reading cannot begin as asked; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Places to read from, and messages by partition that retention deleted before they were read."""

    places: Mapping[int, Place]
    lost: Mapping[int, int]


def topic_identity(topic: str, client: Mapping[str, Any]) -> str:
    """The id that brokers gave this topic when it was made; empty where they have none (before 2.8) or no topic."""
    admin = KafkaAdminClient(**{name: value for name, value in client.items() if name != "metrics_enabled"})
    try:
        (found,) = admin.describe_topics([topic])
    finally:
        admin.close()
    known = str(found.get("topic_id") or "")
    return known if known.strip("0-") else ""


def require_same_topic(topic: str, *, wanted: str, found: str) -> None:
    """Offsets mean nothing in another topic of the same name. Raises StartError; an unknown id is no reason."""
    if wanted and found and wanted != found:
        hint = "hint: raise spec.restartNonce to train the new topic from its beginning"
        raise StartError(f"topic {topic} was deleted and made anew (its id was {wanted} and is {found}); {hint}")


def owned(consumer: KafkaConsumer, options: ReaderOptions) -> list[int]:
    """This reader's partitions, as far as the brokers tell; empty where the topic is not there (yet)."""
    partitions = consumer.partitions_for_topic(options.settings.topic)
    if partitions and len(partitions) < options.num_parts:
        hint = "hint: give the topic at least one partition a reader; see trainer.nodes and kafka.readersPerRank"
        raise StartError(
            f"topic {options.settings.topic} has {len(partitions)} partitions for {options.num_parts} readers; {hint}"
        )
    return own_partitions(partitions, rank=options.part, world_size=options.num_parts)


def open_at(
    consumer: KafkaConsumer,
    options: ReaderOptions,
    partitions: Sequence[int],
    *,
    wanted: Mapping[int, Place],
    new_ones: bool,
) -> Start:
    """Where to read each of `partitions`; `wanted` are places that must still be there. Asks the brokers.

    `new_ones`: those without a place came after the job began, so they are read from their beginning. Raises StartError
    where retention or a new topic of the same name make it impossible, and KafkaError.
    """
    settings = options.settings
    keys = [TopicPartition(settings.topic, partition) for partition in partitions]
    begins = {key.partition: offset for key, offset in consumer.beginning_offsets(keys).items()}
    ends = {key.partition: offset for key, offset in consumer.end_offsets(keys).items()}
    fresh = [partition for partition in partitions if partition not in wanted]
    places: dict[int, Place] = dict.fromkeys(fresh, (0, 0))
    if new_ones or settings.start_from == "earliest":
        places |= {partition: (begins[partition], 0) for partition in fresh}
    elif settings.start_from == "latest":
        places |= {partition: (ends[partition], 0) for partition in fresh}
    elif fresh:
        places |= _at_time(consumer, settings, fresh, ends)
    lost: dict[int, int] = {}
    for partition in partitions:
        if partition not in wanted:
            continue
        offset, row = wanted[partition]
        if offset > ends[partition]:
            raise StartError(_not_there_yet(settings.topic, partition, offset, ends[partition]))
        if offset < begins[partition]:
            lost[partition] = begins[partition] - offset
            if not settings.skip_lost:
                raise StartError(_retention(settings.topic, partition, offset, begins[partition]))
            offset, row = begins[partition], 0
        places[partition] = (offset, row)
    return Start(places=places, lost=lost)


def _at_time(
    consumer: KafkaConsumer, settings: TopicSettings, partitions: Sequence[int], ends: Mapping[int, int]
) -> dict[int, Place]:
    try:
        moment = datetime.fromisoformat(settings.start_from)
    except ValueError as error:
        hint = "hint: write a time such as 2026-01-31T00:00:00Z, or earliest, or latest"
        raise StartError(f"spec.source.kafka.startFrom {settings.start_from!r}: {error}; {hint}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    asked = {TopicPartition(settings.topic, partition): int(moment.timestamp() * 1000) for partition in partitions}
    found = {key.partition: answer for key, answer in consumer.offsets_for_times(asked).items()}
    places: dict[int, Place] = {}
    for partition in partitions:
        answer = found.get(partition)
        places[partition] = (ends[partition] if answer is None or answer.offset < 0 else answer.offset, 0)
    return places


def _retention(topic: str, partition: int, offset: int, begin: int) -> str:
    hint = "hint: set spec.source.kafka.onDataLoss to skip to go on without them, and lengthen the topic's retention"
    return (
        f"{topic}/{partition}: messages {offset} to {begin - 1} were deleted before they were trained "
        f"({begin - offset} at most); {hint}"
    )


def _not_there_yet(topic: str, partition: int, offset: int, end: int) -> str:
    hint = "hint: if so, raise spec.restartNonce to train the new topic from its beginning"
    return f"{topic}/{partition}: goes on from {offset} but ends at {end}: was the topic deleted and made anew?; {hint}"
