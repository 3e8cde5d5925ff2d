"""A stand-in for a broker that answers fetches from memory, where no Java runs or its core is wanted for readers.

`python trainer/benchmarks/kafka_replay.py --format arrow --partitions 8` prints its address and topic and serves until its
input closes. Record batches are what kafka-python's producer code writes, the same few again and again at growing
offsets, so what a client does for a byte is what it does with a broker. It is no broker: one topic, no groups, nothing is
written, no waiting for messages. Give each reader one of its own: a server must not be what limits it.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import threading
import uuid
from contextlib import suppress
from typing import Any

from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.record import MemoryRecordsBuilder
from rap_trainer.produce.directory import tables
from rap_trainer.produce.events import events
from rap_trainer.produce.kafka_topic import Topic, message_value
from rap_trainer.produce.options import Produce
from rap_trainer.stream.kafka.settings import MessageFormat

TOPIC = "replayed"
MESSAGES = 16  # of different content, sent again and again
SPOKEN = {
    ApiVersionsRequest: (0, 3),
    MetadataRequest: (0, 12),
    ListOffsetsRequest: (1, 7),
    FetchRequest: (4, 11),
}
_BY_KEY = {request.API_KEY: request for request in SPOKEN}
_BASE_OFFSET = struct.Struct(">q")


class Replay:
    """Listens on a port of this host. `end` messages are in each partition."""

    def __init__(self, values: list[bytes], *, num_partitions: int, end: int) -> None:
        self._batches = [_record_batch(value) for value in values]
        self._num_partitions, self._end = num_partitions, end
        self._topic_id = uuid.uuid4()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.message_bytes = sum(map(len, values)) / len(values)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._door.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(ConnectionError), connection, connection.makefile("rb") as file:
            while len(size := file.read(4)) == 4:
                data = file.read(int.from_bytes(size, "big"))
                key, version, correlation = struct.unpack_from(">hhi", data)
                request = _BY_KEY[key].decode(data, version=version, header=True)
                for part in self._answer(request, version, correlation):
                    connection.sendall(part)

    def _answer(self, request: Any, version: int, correlation: int) -> list[Any]:
        match request:
            case ApiVersionsRequest():
                keys = [
                    ApiVersionsResponse.ApiVersion(api_key=each.API_KEY, min_version=low, max_version=high)
                    for each, (low, high) in SPOKEN.items()
                ]
                response = ApiVersionsResponse(version=version, api_keys=keys)
            case MetadataRequest():
                response = self._metadata(version)
            case ListOffsetsRequest():
                response = self._offsets(request, version)
            case _:
                return self._fetched(request, version, correlation)
        response.with_header(correlation_id=correlation)
        return [response.encode(header=True, framed=True)]

    def _metadata(self, version: int) -> Any:
        host, port = self.address.split(":")
        partitions = [
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                partition_index=number, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
            )
            for number in range(self._num_partitions)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name=TOPIC, topic_id=self._topic_id, partitions=partitions)
        broker = MetadataResponse.MetadataResponseBroker(node_id=0, host=host, port=int(port))
        return MetadataResponse(version=version, brokers=[broker], topics=[topic], cluster_id="replay", controller_id=0)

    def _offsets(self, request: Any, version: int) -> Any:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = [
            kind(
                name=topic.name,
                partitions=[
                    kind.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=0,
                        offset=0 if each.timestamp == -2 else self._end,
                        leader_epoch=0,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(version=version, topics=topics)

    def _fetched(self, request: Any, version: int, correlation: int) -> list[Any]:
        """The answer in pieces: encoding it with kafka-python would copy all records four times."""
        wanted = [each for topic in request.topics for each in topic.partitions]
        left, parts = request.max_bytes, []
        for each in wanted:
            records = self._records(each.fetch_offset, min(left, each.partition_max_bytes))
            left -= sum(map(len, records))
            head = struct.pack(">ihqqq", each.partition, 0, self._end, self._end, 0) + struct.pack(">i", -1)
            head += (struct.pack(">i", -1) if version >= 11 else b"") + struct.pack(">i", sum(map(len, records)))
            parts += [head, *records]
        name = TOPIC.encode()
        body: list[Any] = (
            [struct.pack(">iihi", correlation, 0, 0, 0)] if version >= 7 else [struct.pack(">ii", correlation, 0)]
        )
        body += [struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", len(wanted)), *parts]
        return [struct.pack(">i", sum(map(len, body))), *body]

    def _records(self, offset: int, limit: int) -> list[bytes | memoryview]:
        found: list[bytes | memoryview] = []
        while offset < self._end:
            batch = self._batches[offset % len(self._batches)]
            if found and limit < len(batch):
                break
            found += [_BASE_OFFSET.pack(offset), batch[_BASE_OFFSET.size :]]
            limit -= len(batch)
            offset += 1
        return found


def _record_batch(value: bytes) -> memoryview:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=len(value) + 1024)
    builder.append(timestamp=1_700_000_000_000, key=b"0", value=value)
    builder.close()
    return memoryview(bytes(builder.buffer()))


def criteo_messages(format_name: MessageFormat, rows_per_message: int) -> list[bytes]:
    """Messages of Criteo's 40 columns."""
    topic = Topic(
        bootstrap_servers=("nowhere:9092",), topic=TOPIC, format=format_name, rows_per_message=rows_per_message
    )
    options = Produce(rows=MESSAGES * rows_per_message, hex_categories=format_name in ("csv", "tsv"))
    whole = tables(events(options), rows_per_message)
    return [message_value(table, number, options, topic) for number, table in enumerate(whole)]


def main() -> None:
    """Serves until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", default="arrow")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--rows-per-message", type=int, default=1000)
    options = parser.parse_args()
    values = criteo_messages(options.format, options.rows_per_message)
    replay = Replay(values, num_partitions=options.partitions, end=options.messages)
    place = {"bootstrap": replay.address, "topic": TOPIC, "message_bytes": replay.message_bytes}
    print(json.dumps(place), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
