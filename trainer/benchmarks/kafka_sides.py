"""One way to read a topic to its end, alone in a process: what `kafka_bench.py` compares. Prints one JSON line.

`python trainer/benchmarks/kafka_sides.py SIDE --bootstrap HOST:PORT --topic T --format F --rows N --messages M`. Times
begin where the consumer stands before the first message and end with the last row; CPU seconds are those of the
process, and for the source also of its readers, since what counts is rows a core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from kafka import KafkaConsumer, TopicPartition
from rap_contract.job import RAPJobSpec
from rap_trainer.stream.kafka.fast_fetch import speed_up
from rap_trainer.stream.kafka.reader import FETCH_BYTES, FRAME_BYTES

BATCH_ROWS = 4096
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the side and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=sorted(SIDES))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--format", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--partition", type=int, default=0)
    print(json.dumps(SIDES[(options := parser.parse_args()).side](options)), flush=True)


def _measured(work: Callable[[], int]) -> dict[str, float]:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    num_bytes = work()
    return {
        "seconds": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "bytes": num_bytes,
    }


def _consumer(options: argparse.Namespace) -> KafkaConsumer:
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap, fetch_max_bytes=FETCH_BYTES, max_partition_fetch_bytes=FRAME_BYTES
    )
    consumer.assign([TopicPartition(options.topic, options.partition)])
    consumer.seek_to_beginning()
    return consumer


def _polls(options: argparse.Namespace) -> Iterator[list[bytes]]:
    """Values of messages, poll by poll, until all are there."""
    consumer, count = options.consumer, 0
    while count < options.messages:
        for records in consumer.poll(1000, max_records=20_000).values():
            count += len(records)
            yield [record.value for record in records]


def _schema() -> pa.Schema:
    dense = [(f"int_{i}", pa.float32()) for i in range(13)]
    return pa.schema([("label", pa.int32()), *dense, *((f"cat_{i}", pa.int64()) for i in range(26))])


def poll(options: argparse.Namespace) -> dict[str, float]:
    """kafka-python, and nothing done with the bytes."""
    options.consumer = _consumer(options)
    return _measured(lambda: sum(len(value) for values in _polls(options) for value in values))


def fast_poll(options: argparse.Namespace) -> dict[str, float]:
    """kafka-python as the reader has it: larger reads, fewer copies."""
    speed_up()
    return poll(options)


def per_row(options: argparse.Namespace) -> dict[str, float]:
    """Each line decoded by itself, as TorchEasyRec would read JSON.

    Its Kafka reader (alibaba/TorchEasyRec, `tzrec/datasets/kafka_dataset.py`) knows Arrow messages only: it gives every
    row a source and an offset as Python objects, joins messages to one Arrow batch, and makes tensors of that batch's
    columns. Here lines go the same way: `json.loads`, a list of objects a column, an Arrow batch, tensors.
    """
    import torch  # the other sides do without

    torch.set_num_threads(1)
    options.consumer = _consumer(options)
    schema = _schema()

    def tensors(columns: dict[str, list[Any]], sources: list[str], offsets: list[int]) -> list[Any]:
        """Numbers with 0 for null; ids as values and lengths, as a KeyedJaggedTensor wants them."""
        made: list[Any] = [pa.array(sources, pa.string()), pa.array(offsets, pa.int64())]
        for name, column in columns.items():
            array = pa.array(column, schema.field(name).type)
            if name.startswith("cat_"):
                lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
                made += [torch.tensor(array.drop_null().to_numpy()), torch.from_numpy(lengths)]
            else:
                made.append(torch.tensor(array.fill_null(0).to_numpy()))
        return made

    def work() -> int:
        num_bytes = count = 0
        columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        sources: list[str] = []
        offsets: list[int] = []
        for values in _polls(options):
            for value in values:
                num_bytes += len(value)
                lines = value.splitlines()
                sources += [f"{options.topic}:{options.partition}"] * len(lines)
                offsets += [count] * len(lines)
                count += 1
                for line in lines:
                    row = json.loads(line)
                    for name, column in columns.items():
                        column.append(row.get(name))
                if len(offsets) >= BATCH_ROWS:
                    tensors(columns, sources, offsets)
                    columns, sources, offsets = {name: [] for name in schema.names}, [], []
        tensors(columns, sources, offsets)
        return num_bytes

    return _measured(work)


def pyarrow_json(options: argparse.Namespace) -> dict[str, float]:
    """What one writes by hand: kafka-python, and Arrow's reader over the lines of a poll."""
    options.consumer = _consumer(options)
    schema = _schema()
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def work() -> int:
        num_bytes = 0
        for values in _polls(options):
            body = b"".join(values)
            num_bytes += len(body)
            reading = pj.ReadOptions(use_threads=False)
            pj.read_json(pa.BufferReader(body), read_options=reading, parse_options=parsing)
        return num_bytes

    return _measured(work)


def parse_only(options: argparse.Namespace) -> dict[str, float]:
    """Arrow's JSON reader alone, over lines that are in memory already."""
    options.consumer = _consumer(options)
    schema = _schema()
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    bodies = [b"".join(values) for values in _polls(options)]

    def work() -> int:
        for body in bodies:
            reading = pj.ReadOptions(use_threads=False)
            pj.read_json(pa.BufferReader(body), read_options=reading, parse_options=parsing)
        return sum(map(len, bodies))

    return _measured(work)


def confluent(options: argparse.Namespace) -> dict[str, float]:
    """confluent-kafka, and for Arrow messages pyarrow: columns as numpy sees them."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": FRAME_BYTES,
        }
    )
    consumer.assign([Partition(options.topic, options.partition, 0)])

    def work() -> int:
        count = num_bytes = 0
        while count < options.messages:
            for message in consumer.consume(500, timeout=1.0):
                value = message.value()
                count += 1
                num_bytes += len(value)
                if options.format == "arrow":
                    table = pa.ipc.open_stream(value).read_all()
                    for column in table.columns:
                        np.asarray(column.chunk(0).fill_null(0))
        return num_bytes

    return _measured(work)


def source(options: argparse.Namespace) -> dict[str, float]:
    """This project's source, into training batches."""
    from rap_trainer.step.loop import IDLE_S
    from rap_trainer.stream.kafka.source import KafkaSource  # the other sides do without torch

    made = KafkaSource(job(options.bootstrap, options.topic, options.format))
    count = 0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    (pid,) = made.reader_pids
    began_reader_s = _cpu_s(pid)
    try:
        while count < options.rows:
            offer = made.offer()
            if offer.rows == 0 or (offer.rows < BATCH_ROWS and count + offer.rows < options.rows):
                time.sleep(IDLE_S)
                continue
            count += made.take([offer.rows]).num_rows
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        reader_s = _cpu_s(pid) - began_reader_s
        return {
            "seconds": seconds,
            "cpu_s": cpu_s + reader_s,
            "reader_cpu_s": reader_s,
            "bytes": made.counts().message_bytes,
        }
    finally:
        made.close()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def job(bootstrap: str, topic: str, format_name: str) -> RAPJobSpec:
    """A job with Criteo's 40 columns."""
    csv = {"hexColumns": ["cat_{0..25}"]} if format_name == "tsv" else {}
    kafka = {"bootstrapServers": [bootstrap], "topic": topic, "format": format_name, "csv": csv}
    return RAPJobSpec.model_validate(
        {
            "source": {"kafka": kafka},
            "columns": {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "int64"},
            "label": "label",
            "features": [{"columns": ["int_0"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": BATCH_ROWS},
            "checkpoint": {"path": str(Path("unused"))},
        }
    )


SIDES: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    each.__name__: each for each in (poll, fast_poll, per_row, pyarrow_json, parse_only, confluent, source)
}


if __name__ == "__main__":
    main()
