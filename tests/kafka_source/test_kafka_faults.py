"""What brokers, topics and producers do wrong while a topic is trained: every row's effect once, or a dead letter."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from kafka import TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka_source.topics import Training, arrow, fill, ranks, received, send, spec, table, until
from rap_trainer.batch import Position
from rap_trainer.stream.kafka import dead_letter_topic
from rap_trainer.stream.kafka.source import KafkaSource, KafkaSourceOptions
from rap_trainer.stream.source import SourceError
from servers.kafka_cluster import KafkaCluster
from servers.waiting import wait_until

pytestmark = pytest.mark.kafka


def pause_of(seconds: float, *, slow: bool) -> object:
    return pytest.param(seconds, marks=pytest.mark.slow if slow else (), id=f"{seconds:.0f}s")


@pytest.mark.parametrize("outage_s", [pause_of(2, slow=False), pause_of(20, slow=True)])
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_broker_that_is_away_costs_time_and_nothing_else(
    kafka_broker: KafkaCluster, tmp_path: Path, how: str, outage_s: float
) -> None:
    """A frozen one (SIGSTOP) keeps its connections open and answers nothing: the half-open case."""
    topic, broker = kafka_broker.create_topic(num_partitions=2), kafka_broker.brokers[0]
    produced = fill(kafka_broker, topic, partitions=2, messages=20, rows=9)
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path), 2) as sources:
        training.train(sources, 100)
        if how == "killed":
            broker.kill()
        else:
            broker.pause()
        until_s = time.monotonic() + outage_s
        until(sources, lambda: time.monotonic() >= until_s, "the outage is over")
        broker.recover()
        produced += fill(kafka_broker, topic, partitions=2, messages=3, rows=9, first=len(produced))
        training.train(sources, len(produced) - len(training.rows))
    training.check(produced, {f"{topic}/0": 23, f"{topic}/1": 23})


def test_a_partition_whose_leader_dies_is_read_from_the_next_one(kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_cluster.create_topic(num_partitions=2)
    produced = fill(kafka_cluster, topic, partitions=2, messages=10, rows=8)
    training = Training(tmp_path)
    with training.attempt(spec(kafka_cluster, topic, tmp_path), 2) as sources:
        training.train(sources, 60)
        leader = kafka_cluster.leader(topic, 0)
        leader.kill()
        wait_until(lambda: kafka_cluster.leader(topic, 0) is not leader, limit_s=60, what="another leader")
        produced += fill(kafka_cluster, topic, partitions=2, messages=4, rows=8, first=len(produced))
        training.train(sources, len(produced) - len(training.rows))
    training.check(produced, {f"{topic}/0": 14, f"{topic}/1": 14})


def test_a_topic_made_anew_is_noticed_while_it_is_read_and_at_the_next_start(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    produced = fill(kafka_broker, topic, partitions=1, messages=2, rows=8)
    job, training = spec(kafka_broker, topic, tmp_path), Training(tmp_path)
    with training.attempt(job) as sources:
        training.train(sources, len(produced))
        make_anew(kafka_broker, topic)
        fill(kafka_broker, topic, partitions=1, messages=2, rows=8)  # up to the position: offsets alone tell nothing
        with pytest.raises(SourceError, match=r"was deleted and made anew.*restartNonce"):
            until(sources, lambda: False, "the topic's end")
    training.check(produced, {f"{topic}/0": 2})
    with ranks(job, start=training.positions) as sources, pytest.raises(SourceError, match="was deleted and made anew"):
        sources[0].offer()


def make_anew(cluster: KafkaCluster, topic: str) -> None:
    admin = cluster.admin()
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), limit_s=30, what="the topic is gone")
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    admin.close()
    wait_until(lambda: cluster.leader(topic), limit_s=30, what="the topic is there")


def test_partitions_that_are_added_while_two_ranks_train_go_to_one_of_them_each(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic(num_partitions=2)
    produced = fill(kafka_broker, topic, partitions=2, messages=4, rows=8)
    job, training = spec(kafka_broker, topic, tmp_path, partitionDiscoverySeconds=1), Training(tmp_path)
    with training.attempt(job, 2) as sources:
        training.train(sources, 32)
        admin = kafka_broker.admin()
        admin.create_partitions({topic: NewPartitions(total_count=5)})
        admin.close()
        wait_until(lambda: kafka_broker.leader(topic, 4), limit_s=30, what="the new partitions")
        produced += fill(kafka_broker, topic, partitions=5, messages=2, rows=8, first=len(produced))
        training.train(sources, len(produced) - len(training.rows) - 16)
    with training.attempt(job, 1) as sources:
        training.train(sources, 16)
    training.check(produced, {f"{topic}/{p}": 6 if p < 2 else 2 for p in range(5)})


@pytest.mark.parametrize("rows", [5_000, pytest.param(7_000_000, marks=pytest.mark.slow)], ids=["short", "200MB"])
def test_a_backlog_is_read_in_bounded_memory(kafka_broker: KafkaCluster, tmp_path: Path, rows: int) -> None:
    topic, messages = kafka_broker.create_topic(), 100
    size = rows // messages
    for first in range(0, rows, size):
        send(kafka_broker, topic, [arrow(table(range(first, first + size)))])
    options = KafkaSourceOptions(ring_bytes=32 << 20, limit_bytes=32 << 20)
    training, process = Training(tmp_path), psutil.Process()
    with training.attempt(spec(kafka_broker, topic, tmp_path, batch_rows=1000), options=options) as sources:
        until(sources, lambda: sources[0].offer().rows == 1000, "a batch")
        before = process.memory_info().rss
        training.train(sources, rows)
        own = 60 * rows  # what this test remembers of each row
        assert process.memory_info().rss < before + own + (200 << 20)
        assert sources[0].reader_pid is not None
        assert psutil.Process(sources[0].reader_pid).memory_info().rss < 400 << 20
    training.check(range(rows), {f"{topic}/0": messages})


@pytest.mark.parametrize("messages", [60, pytest.param(2_000, marks=pytest.mark.slow)], ids=["short", "long"])
def test_no_message_however_damaged_costs_a_good_row(kafka_broker: KafkaCluster, tmp_path: Path, messages: int) -> None:
    topic = kafka_broker.create_topic(config={"max.message.bytes": str(16 << 20)})
    dead = kafka_broker.create_topic("dead", config={"max.message.bytes": str(16 << 20)})
    random = np.random.default_rng(7)
    large = table(range(1_000_000, 1_300_000))  # 10 MB
    values: list[bytes | None] = [b"", None, arrow(large), b"\0" * 10_000_000, b"[" * 1_000_000, b"\0\0\0\0\1registry"]
    damaged = 3
    for number in range(messages):
        whole = arrow(table(range(10 * number, 10 * number + 10)))
        kind = number % 4
        if kind == 1:
            values.append(whole[: int(random.integers(1, len(whole) - 1))])
        elif kind == 3:
            values.append(random.bytes(max(1, len(whole))))
        else:
            values.append(whole)
        damaged += kind in (1, 3)
    values.append(arrow(table(range(10 * messages, 10 * messages + 10))))
    send(kafka_broker, topic, values)
    good = [row for number in range(0, messages + 1, 2) for row in range(10 * number, 10 * number + 10)]
    good += range(1_000_000, 1_300_000)
    training, options = Training(tmp_path), KafkaSourceOptions()
    job = spec(kafka_broker, topic, tmp_path, batch_rows=20_000, deadLetter={"topic": dead})
    with training.attempt(job, options=options) as sources:
        training.drain(sources)
        counts = sources[0].counts()
    training.check(training.rows, {f"{topic}/0": len(values)})
    seen = set(training.rows)
    assert len(seen) == len(training.rows)
    truncated_but_whole = seen - set(good)  # cut behind its last byte of data, a message still has all its rows
    assert seen >= set(good)
    assert len(truncated_but_whole) % 10 == 0
    assert sum(counts.bad_rows.values()) == damaged - len(truncated_but_whole) // 10
    assert counts.empty_messages == 2
    letters = received(kafka_broker, dead, sum(counts.bad_rows.values()))
    offsets = [int(dict(letter.headers)["rap.offset"]) for letter in letters]
    assert sorted(set(offsets)) == sorted(offsets), "each once"
    assert all(letter.value == values[offset] for letter, offset in zip(letters, offsets, strict=True))


def test_one_damaged_byte_in_a_hundred_costs_only_the_messages_that_it_hits(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """Of JSON lines, whose damage shows: every line that is still what was sent is trained."""
    topic = kafka_broker.create_topic()
    random = np.random.default_rng(8)
    lines = [b'{"label": %d, "row": %d, "dense": 1.5, "ids": [1, 2]}' % (row % 2, row) for row in range(300)]
    sent = []
    for line in lines:
        data = np.frombuffer(line, np.uint8).copy()
        hit = random.random(len(data)) < 0.01
        data[hit] = random.integers(1, 256, int(hit.sum()))
        sent.append(data.tobytes())
    sent[-1] = lines[-1]
    send(kafka_broker, topic, [b"\n".join(sent[begin : begin + 30]) for begin in range(0, 300, 30)])
    whole = {row for row, (line, damaged) in enumerate(zip(lines, sent, strict=True)) if line == damaged}
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path, format="json")) as sources:
        training.drain(sources)
        bad = sum(sources[0].counts().bad_rows.values())
    training.check(training.rows, {f"{topic}/0": 10})
    assert 50 < len(whole) < 250
    assert whole <= set(training.rows)
    assert len(training.rows) + bad == sources[0].counts().rows


def test_a_json_bomb_costs_its_own_line(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """Brackets without end, a number of a million digits, a name of a megabyte: one bad line each, good ones between."""
    topic, dead = (
        kafka_broker.create_topic(),
        kafka_broker.create_topic("dead", config={"max.message.bytes": "16777216"}),
    )

    def line(row: int) -> bytes:
        return b'{"label": %d, "row": %d, "dense": 1.5, "ids": [1, 2]}' % (row % 2, row)

    deep = [b'{"row": ' + b"[" * 100_000, b'{"a":' * 100_000, b'{"row": ' + b"9" * 300_000, b'{"' + b"x" * 300_000]
    values = [b"\n".join([line(3 * number), bomb, line(3 * number + 1)]) for number, bomb in enumerate(deep)]
    produced = [3 * number + place for number in range(len(deep)) for place in (0, 1)]
    send(kafka_broker, topic, values)
    training, job = Training(tmp_path), spec(kafka_broker, topic, tmp_path, format="json", deadLetter={"topic": dead})
    with training.attempt(job) as sources:
        training.drain(sources)
        assert sum(sources[0].counts().bad_rows.values()) == len(deep)
    training.check(produced, {f"{topic}/0": len(values)})
    assert [letter.value for letter in received(kafka_broker, dead, len(deep))] == deep


def test_event_times_far_off_never_stop_the_clock(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    rows = table(range(8))
    now_s = time.time()
    skewed = [now_s, now_s + 86_400, now_s - 10 * 365 * 86_400, -1.0, 0.0, float("nan"), float("inf"), 1e300]
    send(kafka_broker, topic, [arrow(rows.append_column("ts", [skewed]))])
    training, job = Training(tmp_path), spec(kafka_broker, topic, tmp_path, eventTime={"column": "ts"})
    with training.attempt(job) as sources:
        training.train(sources, 8)
    training.check(range(8), {f"{topic}/0": 1})


def test_bad_records_that_nobody_can_keep_stop_the_job_and_cost_no_row(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic, dead = kafka_broker.create_topic(), f"dead-{tmp_path.name}"
    send(kafka_broker, topic, [arrow(table(range(10), bad=[3])), arrow(table(range(10, 20)))])
    job, training = spec(kafka_broker, topic, tmp_path, deadLetter={"topic": dead}), Training(tmp_path)
    with training.attempt(job) as sources:
        until(sources, lambda: sources[0].offer().rows > 0, "rows")
        with pytest.raises(SourceError, match=r"bad records cannot be kept.*deadLetter\.path"):
            training.train(sources, 9)
    training.rows.clear()  # what no ledger and no checkpoint has did not happen
    admin = kafka_broker.admin()
    admin.create_topics([NewTopic(name=dead, num_partitions=1, replication_factor=1)])
    admin.close()
    wait_until(lambda: kafka_broker.leader(dead), limit_s=30, what="the dead-letter topic")
    with training.attempt(job) as sources:
        training.train(sources, 19)
    training.check([row for row in range(20) if row != 3], {f"{topic}/0": 2})
    (letter,) = received(kafka_broker, dead, 1)
    assert dict(letter.headers)["rap.row"] == b"3"


def test_dead_letters_go_to_the_directory_while_no_broker_answers_and_to_the_topic_again_after(
    kafka_broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_topic, "DELIVERY_S", 1.0)
    monkeypatch.setattr(dead_letter_topic, "RETRY_AFTER_S", 0.0)
    topic, dead = kafka_broker.create_topic(), kafka_broker.create_topic("dead")
    send(kafka_broker, topic, [arrow(table(range(first, first + 10), bad=[first + 3])) for first in (0, 10)])
    letters = {"topic": dead, "path": str(tmp_path / "dead")}
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path, batch_rows=9, deadLetter=letters)) as sources:
        training.train(sources, 9)
        assert sources[0].counts().dead_letters == {"topic": 1, "file": 0}
        until(sources, lambda: sources[0].offer().rows == 9, "rows that are read ahead")
        kafka_broker.brokers[0].pause()
        training.train(sources, 9)
        assert sources[0].counts().dead_letters == {"topic": 1, "file": 1}
        kafka_broker.brokers[0].recover()
        for sent in range(2, 30):  # until the producer has its connection again
            send(kafka_broker, topic, [arrow(table(range(10 * sent, 10 * sent + 10), bad=[10 * sent + 3]))])
            training.train(sources, 9)
            if sources[0].counts().dead_letters["topic"] == 2:
                break
        assert sources[0].counts().dead_letters == {"topic": 2, "file": sent - 1}
    training.check([row for row in range(10 * sent + 10) if row % 10 != 3], {f"{topic}/0": sent + 1})
    lines = next((tmp_path / "dead").iterdir()).read_text().splitlines()
    assert [(json.loads(line)["offset"], json.loads(line)["row"]) for line in lines] == [(n, 3) for n in range(1, sent)]
    first, *others = [int(dict(letter.headers)["rap.offset"]) for letter in received(kafka_broker, dead, 2)]
    assert first == 0
    assert set(others) <= set(range(1, sent + 1)), "a broker that thaws may take what the directory has too"


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_retention_that_overtakes_a_running_job_stops_it_or_is_counted(
    kafka_broker: KafkaCluster, tmp_path: Path, policy: str
) -> None:
    topic = kafka_broker.create_topic()
    produced = fill(kafka_broker, topic, partitions=1, messages=4, rows=8)
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path, onDataLoss=policy)) as sources:
        training.train(sources, len(produced))
        reader = psutil.Process(sources[0].reader_pid)
        reader.suspend()
        for first in (32, 64):  # a fetch that is under way gets the first half
            fill(kafka_broker, topic, partitions=1, messages=4, rows=8, first=first)
        admin = kafka_broker.admin()
        admin.delete_records({TopicPartition(topic, 0): 11})
        admin.close()
        reader.resume()
        if policy == "fail":
            with pytest.raises(SourceError, match="to 10 were deleted before they were trained"):
                until(sources, lambda: take_all(training, sources) and False, "the end")
            return
        until(sources, lambda: take_all(training, sources) and training.rows[-1] == 95, "the last message")
        lost = sources[0].counts().lost_messages
        assert len(training.rows) == 8 * (12 - lost)
        assert 0 < lost <= 7
        assert training.rows[-8:] == list(range(88, 96))
        assert sources[0].positions()[f"{topic}/0"] == Position(12)


def take_all(training: Training, sources: list[KafkaSource]) -> bool:
    """Trains what is there now; whether anything was trained at all so far."""
    while sources[0].offer().rows:
        training.train(sources, 1)
    return bool(training.rows)


def test_few_partitions_are_shared_by_the_ranks_of_a_node_over_any_number_of_them(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic, dead = kafka_broker.create_topic(num_partitions=2), kafka_broker.create_topic("dead")
    produced = fill(kafka_broker, topic, partitions=2, messages=30, rows=9)
    send(kafka_broker, topic, [b"no Arrow"])
    job, training = spec(kafka_broker, topic, tmp_path, deadLetter={"topic": dead}), Training(tmp_path)
    bad = 0
    for world_size, nodes, count in ((4, 1, 100), (2, None, 50), (4, 2, 150), (3, 1, 100), (1, None, 140)):
        with training.attempt(job, world_size, nodes=nodes) as sources:
            training.train(sources, min(count, len(produced) - len(training.rows)))
            if world_size == 1:
                training.drain(sources)  # the bad message comes last
            bad += sum(sum(source.counts().bad_rows.values()) for source in sources)
    assert bad == 1, "one rank of those that share accounts for it"
    assert sorted(training.rows) == produced


def test_ranks_that_share_a_reader_end_when_it_dies_and_another_attempt_loses_nothing(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    produced = fill(kafka_broker, topic, partitions=1, messages=20, rows=10)
    job, training = spec(kafka_broker, topic, tmp_path), Training(tmp_path)
    with training.attempt(job, 2, nodes=1) as sources:
        training.train(sources, 50)
        psutil.Process(sources[0].reader_pid).kill()
        with pytest.raises(SourceError, match="the reader that this node's ranks share died"):
            training.train(sources, len(produced))
    with training.attempt(job, 2, nodes=1) as sources:
        training.train(sources, len(produced) - len(training.rows))
    training.check(produced, {f"{topic}/0": 20}, shared=True)
