"""With fewer copies kafka-python returns what it returns without, and notices what it notices without."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.errors import CorruptRecordError, KafkaConnectionError
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol import parser
from kafka.record import MemoryRecords, MemoryRecordsBuilder, memory_records
from kafka_source.topics import Training, fill, spec
from rap_trainer.stream.kafka import fast_fetch
from rap_trainer.stream.kafka.fast_fetch import speed_up
from servers.kafka_cluster import KafkaCluster

REPLACED: list[tuple[Any, str]] = [
    (KafkaTCPTransport, "_sock_recv"),
    (KafkaSSLTransport, "_sock_recv"),
    (parser, "KafkaBytes"),
    (memory_records, "DefaultRecordBatch"),
]
RECORDS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"key", b"value", []),
    (None, None, []),
    (b"", b"", [("name", b"content"), ("n\u00e4me", None)]),
    (b"k" * 300, b"v" * 100_000, [("a", b"")]),
]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is as it was when the test is over."""
    for owner, name in REPLACED:
        monkeypatch.setattr(owner, name, getattr(owner, name))


def answer(*, compression: int = 0) -> bytes:
    """Two record batches of all sorts of records."""
    found = b""
    for first in (5, 90):
        builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=1 << 20, offset=first)
        for number, (key, value, headers) in enumerate(RECORDS):
            builder.append(timestamp=1_700_000_000_000 + number, key=key, value=value, headers=headers)
        builder.close()
        found += bytes(builder.buffer())
    return found


def read(data: bytes) -> list[tuple[Any, ...]]:
    records, found = MemoryRecords(memoryview(data)), []
    while (batch := records.next_batch()) is not None:
        if not batch.validate_crc():
            raise CorruptRecordError("checksum")
        found += [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
    return found


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("compression", [0, 1], ids=["plain", "gzip"])
def test_records_are_the_same(compression: int) -> None:
    data = answer(compression=compression)
    before = read(data)
    assert speed_up()
    assert read(data) == before
    assert [(key, value, headers) for _, _, key, value, headers in before] == RECORDS * 2
    assert all(isinstance(value, bytes) for _, _, _, value, _ in before if value is not None), "as parsers expect"


@pytest.mark.usefixtures("library")
def test_damage_is_noticed_at_the_same_places() -> None:
    whole = answer()
    places = range(61 + 60)  # the header of a batch and its first records

    def seen(data: bytes) -> object:
        try:
            return read(data)
        except (CorruptRecordError, ValueError, IndexError) as error:
            return type(error)

    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    cut = [whole[:at] for at in range(0, 200, 7)]
    before = [seen(data) for data in damaged + cut]
    assert speed_up()
    assert [seen(data) for data in damaged + cut] == before
    assert before.count(CorruptRecordError) > 90


@pytest.mark.usefixtures("library")
def test_an_answer_reads_the_same_in_whatever_pieces_it_comes() -> None:
    content, stock = bytes(range(256)) * 10, parser.KafkaBytes
    assert speed_up()
    for size in (1, 7, 256, len(content)):
        before, after = stock(len(content)), parser.KafkaBytes(len(content))
        for begin in range(0, len(content), size):
            before.write(content[begin : begin + size])
            after.write(memoryview(content)[begin : begin + size])
        before.seek(0)
        after.seek(0)
        assert after.read(10) == before.read(10)
        assert after.tell() == before.tell() == 10
        assert bytes(after.read()) == before.read() == content[10:]
        assert after.tell() == len(content)


@pytest.mark.usefixtures("library")
def test_a_socket_gives_all_it_holds_and_says_when_the_other_end_is_gone() -> None:
    assert speed_up()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport = KafkaTCPTransport(None, ours)
    data, error = transport._sock_recv()
    assert (bytes(data), error) == (b"", None)
    theirs.sendall(b"x" * 10_000)
    data, error = transport._sock_recv()
    assert (bytes(data), error) == (b"x" * 10_000, None)
    theirs.sendall(b"last")
    theirs.close()
    data, error = transport._sock_recv()
    assert bytes(data) == b"last"
    assert isinstance(error, KafkaConnectionError)
    ours.close()
    _, error = transport._sock_recv()
    assert isinstance(error, KafkaConnectionError)


@pytest.mark.usefixtures("library")
def test_a_release_that_was_not_tried_is_left_as_it_is_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = [getattr(owner, name) for owner, name in REPLACED]
    monkeypatch.setattr(kafka, "__version__", "3.1.0")
    assert not speed_up()
    assert [getattr(owner, name) for owner, name in REPLACED] == before
    assert "kafka-python 3.1.0 is read as it comes" in caplog.text
    monkeypatch.setattr(kafka, "__version__", f"{fast_fetch.KNOWN_LINE}12")
    assert speed_up()
    assert [getattr(owner, name) for owner, name in REPLACED] != before


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("missing", ["module", "attribute"])
def test_a_release_with_other_parts_is_left_as_it_is_and_the_log_says_so(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = answer()
    before = read(data)
    if missing == "module":
        monkeypatch.delitem(sys.modules, "rap_trainer.stream.kafka.fewer_copies", raising=False)
        monkeypatch.delattr("rap_trainer.stream.kafka.fewer_copies", raising=False)
        monkeypatch.setitem(sys.modules, "kafka.net.transport", None)
    else:
        monkeypatch.delattr(KafkaTCPTransport, "_sock_recv")
    replaced = [(owner, name, getattr(owner, name)) for owner, name in REPLACED[2:]]
    assert not speed_up()
    assert [(owner, name, getattr(owner, name)) for owner, name in REPLACED[2:]] == replaced
    assert "is read as it comes, about a third as fast: " in caplog.text
    assert read(data) == before


@pytest.mark.kafka
def test_a_topic_is_read_without_loss_by_a_release_that_was_not_tried(
    kafka_broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text("import kafka\nkafka.__version__ = '9.0.0'\n")
    monkeypatch.syspath_prepend(str(planted))  # of the reader process, which begins after this
    topic = kafka_broker.create_topic()
    produced = fill(kafka_broker, topic, partitions=1, messages=20, rows=9)
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path)) as sources:
        training.train(sources, len(produced))
    training.check(produced, {f"{topic}/0": 20})
    assert "kafka-python 9.0.0 is read as it comes" in capfd.readouterr().err
