"""The main job on a real broker: trained, stopped, resumed; every row counts once or is a dead letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import TopicPartition
from kafka_source.topics import arrow, received, send
from rap_contract import metrics
from rap_contract.pod import ExitCode
from rap_trainer.display import Display
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.step import loop
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from rap_trainer.train import train
from servers.kafka_cluster import KafkaCluster
from train.recorder import Recorder
from train.small_jobs import NUM_DENSE, NUM_SPARSE, small_job

pytestmark = pytest.mark.kafka

ROWS_A_MESSAGE, MESSAGES, PARTITIONS, BATCH = 20, 8, 3, 16
BAD_EVERY = 40  # rows; one in every second message


def events(rows: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "label": pa.array([7 if row % BAD_EVERY == 3 else row % 2 for row in range(rows)], pa.int32())
    }
    columns |= {f"int_{i}": pa.array(random.random(rows), pa.float32()) for i in range(NUM_DENSE)}
    ids = random.integers(0, 1000, (NUM_SPARSE, rows, 2))
    columns |= {f"cat_{i}": pa.array(list(ids[i]), pa.list_(pa.int64())) for i in range(NUM_SPARSE)}
    return pa.table(columns)


def committed(cluster: KafkaCluster, group: str, topic: str) -> dict[str, int]:
    """What the group has committed, by unit."""
    admin = cluster.admin()
    try:
        offsets = admin.list_group_offsets({group: [TopicPartition(topic, p) for p in range(PARTITIONS)]})[group]
    finally:
        admin.close()
    return {f"{topic}/{key.partition}": found.offset for key, found in offsets.items()}


def freshness_count(store: MetricStore) -> float:
    """Rows of which the time from event to optimizer step is known."""
    (family,) = (each for each in store.collect() if each.name == metrics.FRESHNESS_SECONDS.name)
    return sum(sample.value for sample in family.samples if sample.name.endswith("_count"))


def test_every_row_of_a_topic_counts_once_over_a_stop_and_bad_ones_are_dead_letters(
    tmp_path: Path, kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = kafka_broker.create_topic("clicks", num_partitions=PARTITIONS), kafka_broker.create_topic("dead")
    for partition in range(PARTITIONS):
        rows = events(ROWS_A_MESSAGE * MESSAGES, seed=partition)
        cut = [rows.slice(i * ROWS_A_MESSAGE, ROWS_A_MESSAGE) for i in range(MESSAGES)]
        send(kafka_broker, topic, [*map(arrow, cut), b"not Arrow", None], partition)
    total = ROWS_A_MESSAGE * MESSAGES * PARTITIONS
    bad = total // BAD_EVERY
    good_steps, left = divmod(total - bad, BATCH)
    assert left == 4  # so the last step is a part of a batch
    monkeypatch.setenv(ENV_LEDGER, str(tmp_path / "ledger"))
    source = {
        "kafka": {
            "bootstrapServers": kafka_broker.bootstrap_servers,
            "topic": topic,
            "deadLetter": {"topic": dead},
            "errorBudget": {"ratio": 0.5},
        }
    }
    rows_done = max_steps = 0
    wanted_steps = [5, 12, good_steps + 1]
    while wanted_steps or rows_done < total - bad:  # on a busy machine a wait for rows may have cut steps short
        max_steps = wanted_steps.pop(0) if wanted_steps else max_steps + 1
        recorder, store = Recorder(), MetricStore(metrics.TRAINER)
        job = small_job(tmp_path, source=source, trainer__maxSteps=max_steps, trainer__maxWaitMs=200)
        ending = train(job, display=Display([recorder]), store=store)
        assert ending.code == ExitCode.DONE, ending.reason
        assert ending.reason == "maxSteps is reached"
        rows_done += recorder.outcomes[0].rows
        if max_steps < good_steps:
            assert recorder.outcomes[0].last is not None
            assert recorder.outcomes[0].last.lag_records is not None
            assert recorder.outcomes[0].last.lag_records > 0
            assert sum(store.read(metrics.PENDING_RECORDS).values()) == recorder.outcomes[0].last.lag_records
            for metric in (metrics.PENDING_RECORDS, metrics.LAG_SECONDS):
                assert store.read(metric).keys() == {(topic, str(p)) for p in range(PARTITIONS)}, metric.name
            assert max(store.read(metrics.LAG_SECONDS).values()) > 0
        assert freshness_count(store) == store.read(metrics.ROWS_TRAINED)[()] > 0
    account = replay(tmp_path / "ledger")[0]
    assert gaps(account) == []
    assert rows_done == sum(step.rows for step in account.values()) == total - bad
    ends = {unit: end for step in account.values() for unit, (_, end) in step.spans.items() if "@" not in unit}
    assert {unit: end.offset for unit, end in ends.items()}.keys() == {f"{topic}/{p}" for p in range(PARTITIONS)}
    assert committed(kafka_broker, "rap-checkpoints", topic) == {unit: end.offset for unit, end in ends.items()}
    origins = set()
    for record in received(kafka_broker, dead, bad):
        headers = {name: value.decode() for name, value in record.headers}
        origins.add((headers["rap.partition"], headers["rap.offset"], headers["rap.row"]))
        if headers["rap.reason"] == "label":
            assert json.loads(record.value)["label"] == 7
    rows = [
        (str(p), str(row // ROWS_A_MESSAGE), str(row % ROWS_A_MESSAGE))
        for p in range(PARTITIONS)
        for row in range(ROWS_A_MESSAGE * MESSAGES)
        if row % BAD_EVERY == 3
    ]
    assert origins >= set(rows)


def test_a_starved_rank_says_why_and_trains_what_it_has_after_the_longest_wait(
    tmp_path: Path, kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAY_STARVED_S", 0.2)
    topic = kafka_broker.create_topic("few")
    send(kafka_broker, topic, [arrow(events(10, seed=1).filter(pc.field("label") < 2))])
    source = {"kafka": {"bootstrapServers": kafka_broker.bootstrap_servers, "topic": topic}}
    job = small_job(tmp_path, source=source, trainer__maxSteps=1, trainer__maxWaitMs=1500)
    recorder = Recorder()
    store = MetricStore(metrics.TRAINER)
    ending = train(job, display=Display([recorder]), store=store)
    assert ending.code == ExitCode.DONE, ending.reason
    assert recorder.outcomes[0].rows == 9
    assert store.read(metrics.STARVED_SECONDS)[()] > 1.0, "most of the longest wait of 1.5 s"
    assert store.read(metrics.PARTIAL_BATCHES) == {(): 1}
    reasons = [text for text in recorder.texts("warning") if text.startswith("no step for")]
    assert reasons
    assert f"of the {BATCH} rows that each rank needs, rank 0 has " in reasons[-1]
    assert "rap_source_idle_seconds" in reasons[-1]
