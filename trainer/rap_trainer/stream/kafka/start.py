"""Where reading begins: which partitions are this rank's, and at which message of each.

A checkpoint's places count if what they want is still there; without one the job's `startFrom` does; a partition that
a checkpoint does not know is new and read from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka import KafkaConsumer, TopicPartition
from rap_contract.source import Kafka

from rap_trainer.stream.kafka.assignment import own_partitions
from rap_trainer.stream.kafka.frames import Place, ReaderOptions


class StartError(Exception):
    """Reading cannot begin as asked; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Places to read from, and messages by partition that retention deleted before they were read."""

    places: Mapping[int, Place]
    lost: Mapping[int, int]


def owned(consumer: KafkaConsumer, options: ReaderOptions) -> list[int]:
    """This rank's partitions, as far as the brokers tell; empty where the topic is not there (yet)."""
    partitions = consumer.partitions_for_topic(options.kafka.topic)
    if partitions and len(partitions) < options.world_size:
        hint = "hint: give the topic at least one partition a rank, or the job fewer ranks"
        raise StartError(
            f"topic {options.kafka.topic} has {len(partitions)} partitions for {options.world_size} ranks; {hint}"
        )
    return own_partitions(partitions, rank=options.rank, world_size=options.world_size)


def open_at(
    consumer: KafkaConsumer, options: ReaderOptions, partitions: Sequence[int], *, wanted: Mapping[int, Place]
) -> Start:
    """Where to read each of `partitions`; `wanted` are places that must still be there. Asks the brokers.

    Raises StartError where retention or a new topic of the same name make that impossible, and KafkaError.
    """
    kafka = options.kafka
    keys = [TopicPartition(kafka.topic, partition) for partition in partitions]
    begins = {key.partition: offset for key, offset in consumer.beginning_offsets(keys).items()}
    ends = {key.partition: offset for key, offset in consumer.end_offsets(keys).items()}
    fresh = [partition for partition in partitions if partition not in wanted]
    places: dict[int, Place] = dict.fromkeys(fresh, (0, 0))
    if options.has_start or kafka.start_from == "earliest":
        places |= {partition: (begins[partition], 0) for partition in fresh}
    elif kafka.start_from == "latest":
        places |= {partition: (ends[partition], 0) for partition in fresh}
    elif fresh:
        places |= _at_time(consumer, kafka, fresh, ends)
    lost: dict[int, int] = {}
    for partition in partitions:
        if partition not in wanted:
            continue
        offset, row = wanted[partition]
        if offset > ends[partition]:
            raise StartError(_not_there_yet(kafka.topic, partition, offset, ends[partition]))
        if offset < begins[partition]:
            lost[partition] = begins[partition] - offset
            if kafka.on_data_loss == "fail":
                raise StartError(_retention(kafka.topic, partition, offset, begins[partition]))
            offset, row = begins[partition], 0
        places[partition] = (offset, row)
    return Start(places=places, lost=lost)


def _at_time(
    consumer: KafkaConsumer, kafka: Kafka, partitions: Sequence[int], ends: Mapping[int, int]
) -> dict[int, Place]:
    try:
        moment = datetime.fromisoformat(kafka.start_from)
    except ValueError as error:
        hint = "hint: write a time such as 2026-01-31T00:00:00Z, or earliest, or latest"
        raise StartError(f"spec.source.kafka.startFrom {kafka.start_from!r}: {error}; {hint}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    asked = {TopicPartition(kafka.topic, partition): int(moment.timestamp() * 1000) for partition in partitions}
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
