"""The source on a real broker, rank by rank, without a model: nothing twice, nothing lost, and clear ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from kafka_source.topics import Training, arrow, fill, ranks, received, rows_of, send, spec, step, table, until
from rap_contract import metrics
from rap_trainer.batch import Position
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.kafka.chunks import fingerprint
from rap_trainer.stream.kafka.source import KafkaSourceOptions
from rap_trainer.stream.source import DataBudgetExceeded, SourceError
from servers.kafka_cluster import KafkaCluster
from servers.waiting import wait_until

pytestmark = pytest.mark.kafka


def test_ranks_change_between_checkpoints_and_every_row_comes_once(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic(num_partitions=4)
    produced = fill(kafka_broker, topic, partitions=4, messages=5, rows=11)
    job = spec(kafka_broker, topic, tmp_path)
    seen: list[int] = []
    positions: dict[str, Position] = {}
    for world_size, count in ((1, 40), (2, 60), (4, 40), (2, 80)):
        count = min(count, len(produced) - len(seen))
        with ranks(job, world_size, start=positions) as sources:
            found = rows_of(sources, count)
            seen += [row for mine in found for row in mine]
            for source in sources:
                positions |= source.positions()
    assert sorted(seen) == produced
    assert {positions[f"{topic}/{partition}"] for partition in range(4)} == {Position(5)}


def test_a_rank_with_two_readers_gets_every_row_once_and_may_lose_either(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic(num_partitions=4)
    produced = fill(kafka_broker, topic, partitions=4, messages=5, rows=11)
    training = Training(tmp_path)
    with training.attempt(spec(kafka_broker, topic, tmp_path, readersPerRank=2), 2) as sources:
        training.train(sources, 60)
        first, second = sources[0].reader_pids
        os.kill(second, signal.SIGKILL)
        until(sources, lambda: second not in sources[0].reader_pids, "another reader")
        assert first in sources[0].reader_pids
        produced += fill(kafka_broker, topic, partitions=4, messages=2, rows=11, first=len(produced))
        training.train(sources, 60)
    with training.attempt(spec(kafka_broker, topic, tmp_path), 1) as sources:
        training.train(sources, len(produced) - len(training.rows))
    training.check(produced, {f"{topic}/{partition}": 7 for partition in range(4)})


def test_rows_are_the_same_as_in_the_message_and_ids_do_not_depend_on_reading(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    send(kafka_broker, topic, [arrow(table(range(10))), arrow(table(range(10, 20)))])
    job = spec(kafka_broker, topic, tmp_path, batch_rows=20)
    with ranks(job) as sources:
        (whole,) = step(sources, flush=False)
    job = spec(kafka_broker, topic, tmp_path, batch_rows=13)
    with ranks(job, start={f"{topic}/0": Position(0, 7)}) as sources:
        (rest,) = step(sources, flush=False)
    assert whole.columns["row"].values_N.tolist() == list(range(20))
    assert rest.columns["row"].values_N.tolist() == list(range(7, 20))
    assert torch.equal(whole.row_ids_B[7:], rest.row_ids_B)
    assert len(set(whole.row_ids_B.tolist())) == 20
    lengths = whole.columns["ids"].lengths_B
    assert lengths is not None
    assert lengths.tolist() == [row % 4 for row in range(20)]
    assert bool((whole.event_times_s_B > 1.7e9).all()), "the message's own time"


def test_more_nodes_than_partitions_are_refused_with_what_to_do(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    with (
        ranks(spec(kafka_broker, topic, tmp_path), 2) as sources,
        pytest.raises(SourceError, match="1 partitions for 2 readers"),
    ):
        sources[1].offer()


def test_a_topic_that_is_not_there_is_named(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    options = KafkaSourceOptions(wait_s=1.0)
    with (
        ranks(spec(kafka_broker, "no-such-topic", tmp_path), options=options) as sources,
        pytest.raises(SourceError, match="no-such-topic is not there; hint: create it"),
    ):
        until(sources, lambda: False, "the reason")


def test_start_from_latest_and_from_a_time_skip_what_was_before(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    send(kafka_broker, topic, [arrow(table([0])), arrow(table([1]))])
    moment = np.datetime64(received(kafka_broker, topic, 2)[1].timestamp, "ms")
    send(kafka_broker, topic, [arrow(table([2]))])
    with ranks(spec(kafka_broker, topic, tmp_path, startFrom="latest")) as sources:
        assert sources[0].positions()[f"{topic}/0"] == Position(3), "a checkpoint must remember it"
        send(kafka_broker, topic, [arrow(table([3]))])
        assert rows_of(sources, 1) == [[3]]
    with ranks(spec(kafka_broker, topic, tmp_path, startFrom=f"{moment}Z")) as sources:
        found = rows_of(sources, 3)[0]
        assert found[-3:] == [1, 2, 3]


@pytest.mark.parametrize("format_name", ["json", "csv", "tsv"])
def test_good_lines_survive_and_bad_ones_are_dead_letters(
    kafka_broker: KafkaCluster, tmp_path: Path, format_name: str
) -> None:
    topic, dead = kafka_broker.create_topic(), kafka_broker.create_topic("dead")
    if format_name == "json":
        lines = [json.dumps({"label": row % 2, "row": row, "dense": 1.5, "ids": [row, 1]}) for row in range(6)]
        lines[1], lines[4] = '{"label": 2, "row": 1}', "{"
        header = ""
    else:
        separator = "," if format_name == "csv" else "\t"
        lines = [separator.join([str(row % 2), str(row), "1.5"]) for row in range(6)]
        lines[1], lines[4] = separator.join(["2", "1", "1.5"]), "what?"
        header = separator.join(["label", "row", "dense"]) + "\n"
    values = [header + "\n".join(lines[:3]) + "\n", header + "\n".join(lines[3:])]
    send(kafka_broker, topic, [value.encode() for value in values] + [b"\0garbage", b"", None])
    job = spec(kafka_broker, topic, tmp_path, format=format_name, deadLetter={"topic": dead})
    with ranks(job) as sources:
        assert sorted(rows_of(sources, 4)[0]) == [0, 2, 3, 5]
        until(sources, lambda: sources[0].counts().messages == 5, "the rest")
        until(sources, lambda: sum(sources[0].counts().bad_rows.values()) == 3, "the bad ones")
        sources[0].settle()
        counts = sources[0].counts()
        assert counts.empty_messages == 2
        assert counts.dead_letters == {"topic": 3, "file": 0}
        until(sources, lambda: sources[0].lag().records == 0, "no lag")
    letters = received(kafka_broker, dead, 3)
    places = [
        tuple(value.decode() for name, value in letter.headers if name in ("rap.offset", "rap.row"))
        for letter in letters
    ]
    assert places == [("0", "1"), ("1", "1"), ("2", "0")]
    assert letters[2].value == b"\0garbage"


def test_too_many_bad_records_stop_the_job_and_say_why(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    narrow = table(range(30)).drop_columns(["dense"])
    send(kafka_broker, topic, [arrow(narrow)])
    job = spec(kafka_broker, topic, tmp_path, errorBudget={"ratio": 0.1, "windowRows": 200})
    with ranks(job) as sources, pytest.raises(DataBudgetExceeded, match=r"column dense \(float32\) is missing"):
        until(sources, lambda: False, "the budget")


def test_the_error_budget_is_of_all_ranks_together(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic(num_partitions=2)
    send(kafka_broker, topic, [arrow(table(range(40), bad=range(4)))], 0)
    send(kafka_broker, topic, [arrow(table(range(40, 80)))], 1)
    job = spec(kafka_broker, topic, tmp_path, errorBudget={"ratio": 0.06, "windowRows": 80})
    with ranks(job, 2) as sources:  # 4 of 80, where the first rank alone has 4 of 40
        assert sum(map(len, rows_of(sources, 76))) == 76
        send(kafka_broker, topic, [arrow(table(range(8), bad=[0]))], 1)
        with pytest.raises(DataBudgetExceeded, match=r"5 of the last .* \(here label: "):
            until(sources, lambda: bool(step(sources)) and False, "the budget")


def test_dead_letters_go_to_the_directory_while_the_topic_is_missing(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    topic = kafka_broker.create_topic()
    send(kafka_broker, topic, [arrow(table(range(10), bad=[3]))])
    letters = {"topic": "no-such-topic", "path": str(tmp_path / "dead")}
    with ranks(spec(kafka_broker, topic, tmp_path, deadLetter=letters)) as sources:
        rows_of(sources, 9)
        sources[0].settle()
        assert sources[0].counts().dead_letters == {"topic": 0, "file": 1}
    (line,) = next((tmp_path / "dead").iterdir()).read_text().splitlines()
    letter = json.loads(line)
    assert (letter["unit"], letter["offset"], letter["row"]) == (f"{topic}/0", 0, 3)


def test_a_killed_reader_is_replaced_and_no_row_comes_twice(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic(num_partitions=2)
    produced = fill(kafka_broker, topic, partitions=2, messages=30, rows=7)
    with ranks(spec(kafka_broker, topic, tmp_path)) as sources:
        (seen,) = rows_of(sources, 50)
        killed = sources[0].reader_pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until(sources, lambda: sources[0].reader_pid != killed, "another reader")
        more = fill(kafka_broker, topic, partitions=2, messages=3, rows=7, first=len(produced))
        seen += rows_of(sources, len(produced) + len(more) - len(seen))[0]
    assert sorted(seen) == [*produced, *more]


def test_a_broker_that_restarts_is_waited_for(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    produced = fill(kafka_broker, topic, partitions=1, messages=3, rows=8)
    with ranks(spec(kafka_broker, topic, tmp_path)) as sources:
        (seen,) = rows_of(sources, len(produced))
        kafka_broker.brokers[0].kill()
        assert sources[0].offer().rows == 0
        kafka_broker.brokers[0].start()
        more = fill(kafka_broker, topic, partitions=1, messages=3, rows=8, first=len(produced))
        seen += rows_of(sources, len(more))[0]
    assert seen == [*produced, *more]


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_messages_that_retention_deleted_stop_the_job_or_are_counted(
    kafka_broker: KafkaCluster, tmp_path: Path, policy: str
) -> None:
    topic = kafka_broker.create_topic()
    fill(kafka_broker, topic, partitions=1, messages=6, rows=4)
    admin = kafka_broker.admin()
    admin.delete_records({TopicPartition(topic, 0): 4})
    admin.close()
    with ranks(spec(kafka_broker, topic, tmp_path, onDataLoss=policy), start={f"{topic}/0": Position(1, 2)}) as sources:
        if policy == "fail":
            with pytest.raises(SourceError, match="messages 1 to 3 were deleted before they were trained"):
                sources[0].offer()
        else:
            assert rows_of(sources, 8) == [list(range(16, 24))]
            assert sources[0].counts().lost_messages == 3


def test_a_topic_made_anew_is_noticed(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    fill(kafka_broker, topic, partitions=1, messages=2, rows=4)
    with (
        ranks(spec(kafka_broker, topic, tmp_path), start={f"{topic}/0": Position(7)}) as sources,
        pytest.raises(SourceError, match=r"goes on from 7 but ends at 2.*restartNonce"),
    ):
        sources[0].offer()


def test_new_partitions_are_found_and_read_from_their_beginning(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    job = spec(kafka_broker, topic, tmp_path, startFrom="latest", partitionDiscoverySeconds=1)
    with ranks(job) as sources:
        admin = kafka_broker.admin()
        admin.create_partitions({topic: NewPartitions(total_count=3)})
        admin.close()
        wait_until(lambda: kafka_broker.leader(topic, 2), limit_s=30, what="the new partitions")
        send(kafka_broker, topic, [arrow(table([1]))], 0)
        send(kafka_broker, topic, [arrow(table([2]))], 2)
        assert sorted(rows_of(sources, 2)[0]) == [1, 2]
        assert sources[0].positions()[f"{topic}/2"] == Position(1)


def test_aborted_transactions_are_never_trained_and_leave_no_lag(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic()
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers, transactional_id=f"id-{topic}")
    producer.init_transactions()
    for first, commits in ((0, True), (100, False), (10, True), (200, False)):
        producer.begin_transaction()
        for row in range(first, first + 4):
            producer.send(topic, arrow(table([row])), partition=0)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    with ranks(spec(kafka_broker, topic, tmp_path)) as sources:
        assert rows_of(sources, 8) == [[0, 1, 2, 3, 10, 11, 12, 13]]
        until(sources, lambda: sources[0].counts().messages == 8 and sources[0].lag().records == 0, "no lag")


def test_a_small_ring_and_messages_beyond_it_lose_nothing(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic = kafka_broker.create_topic(config={"max.message.bytes": str(16 << 20)})
    sizes = [10, 40_000, 2000, 2000, 2000, 100_000, 10, 3000]  # rows; 100,000 are 3 MB
    first = 0
    produced: list[int] = []
    for size in sizes:
        produced += range(first, first + size)
        send(kafka_broker, topic, [arrow(table(range(first, first + size)))])
        first += size
    options = KafkaSourceOptions(ring_bytes=256 << 10, limit_bytes=1 << 20)
    with ranks(spec(kafka_broker, topic, tmp_path, batch_rows=5000), options=options) as sources:
        until(sources, lambda: sources[0].lag().records == len(sizes), "the whole lag")
        send(kafka_broker, topic, [arrow(table([first]))])  # while the reader waits for training
        until(sources, lambda: sources[0].lag().records == len(sizes) + 1, "one more")
        produced.append(first)
        assert rows_of(sources, len(produced)) == [produced]


def test_gaps_of_compaction_are_no_lag_and_a_changed_schema_is_a_metric(
    kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    topic = kafka_broker.create_topic(config=compacted)
    sent: list[int] = []

    def has_gaps() -> bool:
        """Of messages with one key the newest stays; only closed segments are compacted, and a new message closes one."""
        sent.append(len(sent))
        send(kafka_broker, topic, [arrow(table([sent[-1]]))])
        return offsets(kafka_broker, topic, end=len(sent)) != sent

    wait_until(has_gaps, limit_s=60, what="compaction")
    send(kafka_broker, topic, [arrow(table([-1]).drop_columns(["dense"]))], key=b"never compacted away")
    send(kafka_broker, topic, [arrow(table([len(sent)]))])
    store = MetricStore(metrics.TRAINER)
    with ranks(spec(kafka_broker, topic, tmp_path)) as sources:
        seen: list[int] = []
        while len(sent) not in seen:
            seen += rows_of(sources, 1)[0]
        until(sources, lambda: sources[0].lag().records == 0, "no lag")
        assert sources[0].positions()[f"{topic}/0"] == Position(len(sent) + 2)
        assert len(seen) < len(sent)
        sources[0].meter(store)
    assert store.read(metrics.SCHEMA_CHANGES) == {(): 2}
    assert store.read(metrics.SCHEMA_INFO) == {(fingerprint(table([0]).schema),): 1}


def offsets(cluster: KafkaCluster, topic: str, *, end: int) -> list[int]:
    """Of the messages that are left in partition 0, whose last one is before `end`."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[int] = []
    while not found or found[-1] < end - 1:
        found += [record.offset for records in consumer.poll(200).values() for record in records]
    consumer.close()
    return found
