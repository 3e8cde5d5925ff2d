"""kill -9 of ranks at random moments while they train a topic: every row's effect is in the model exactly once."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka_source.topics import arrow, send
from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from servers.kafka_cluster import KafkaCluster
from train.forge import Forge, until
from train.saved_state import newest
from train.small_jobs import NUM_DENSE, NUM_SPARSE, write_job
from train.watching import has_checkpoint, steps_begun

pytestmark = pytest.mark.kafka

BATCH, RANKS, PARTITIONS, ROWS_A_MESSAGE = 8, 2, 4, 10


def messages(rows: int, seed: int) -> list[bytes]:
    draw = np.random.default_rng(seed)
    columns: dict[str, Any] = {"label": pa.array(draw.integers(0, 2, rows), pa.int32())}
    columns |= {f"int_{i}": pa.array(draw.random(rows), pa.float32()) for i in range(NUM_DENSE)}
    ids = draw.integers(0, 1000, (NUM_SPARSE, rows, 2))
    columns |= {f"cat_{i}": pa.array(list(ids[i]), pa.list_(pa.int64())) for i in range(NUM_SPARSE)}
    whole = pa.table(columns)
    return [arrow(whole.slice(begin, ROWS_A_MESSAGE)) for begin in range(0, rows, ROWS_A_MESSAGE)]


def kill_at_random_steps(
    folder: Path,
    forge: Forge,
    cluster: KafkaCluster,
    *,
    kills: int,
    rows_a_partition: int,
    choose: random.Random,
    partitions: int = PARTITIONS,
) -> None:
    """Trains a topic while ranks are killed, and audits the ledger. Of one partition both ranks train slices."""
    topic = cluster.create_topic("kills", num_partitions=partitions)
    for partition in range(partitions):
        send(cluster, topic, messages(rows_a_partition, partition), partition)
    rows = partitions * rows_a_partition
    total, rest = divmod(rows, BATCH * RANKS)
    assert rest == 0
    ledger = folder / "ledger"
    job = write_job(
        folder,
        source={"kafka": {"bootstrapServers": cluster.bootstrap_servers, "topic": topic}},
        trainer__batchSizePerGpu=BATCH,
        trainer__maxSteps=total,
        checkpoint__intervalSeconds=0.3,
        restartPolicy__maxRestarts=kills,
    )
    run = forge.start(job, num_ranks=RANKS, environment={ENV_LEDGER: str(ledger)})
    for _ in range(kills):
        # steps begun, repeated ones too: so many more are always reached before the end
        wanted = steps_begun(ledger) + choose.randrange(1, max(2, total // (2 * kills)))
        until(lambda wanted=wanted: steps_begun(ledger) >= wanted, f"{wanted} steps are begun")
        run.kill_rank(choose.randrange(RANKS))
    assert run.wait() == ExitCode.DONE, run.output
    assert read_manifest(newest(folder)).attempt == kills + 1
    account = replay(ledger)
    assert sum(step.rows for steps in account.values() for step in steps.values()) == rows
    ends: dict[str, int] = {}
    for steps in account.values():
        assert len(steps) == total
        assert gaps(steps) == []
        ends |= {
            unit: end.offset for step in steps.values() for unit, (_, end) in step.spans.items() if "@" not in unit
        }
    assert ends == {f"{topic}/{p}": rows_a_partition // ROWS_A_MESSAGE for p in range(partitions)}


def test_killed_ranks_leave_no_gap_and_nothing_twice(tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster) -> None:
    kill_at_random_steps(tmp_path, forge, kafka_broker, kills=2, rows_a_partition=400, choose=random.Random(5))


def test_killed_ranks_that_share_one_partition_leave_no_gap_either(
    tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster
) -> None:
    kill_at_random_steps(
        tmp_path, forge, kafka_broker, kills=1, rows_a_partition=1600, choose=random.Random(7), partitions=1
    )


def test_two_trainers_of_one_job_by_mistake_leave_one_model_with_every_row_once(
    tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster
) -> None:
    """The second one fences the first, which may stand still meanwhile and ends at its next checkpoint."""
    topic = kafka_broker.create_topic("twice", num_partitions=2)
    for partition in range(2):
        send(kafka_broker, topic, messages(1600, partition), partition)
    total = 3200 // BATCH
    job = write_job(
        tmp_path,
        source={"kafka": {"bootstrapServers": kafka_broker.bootstrap_servers, "topic": topic}},
        trainer__batchSizePerGpu=BATCH,
        trainer__maxSteps=total,
        checkpoint__intervalSeconds=0.2,
        restartPolicy__maxRestarts=0,
    )
    ledgers = [tmp_path / "first", tmp_path / "second"]
    first = forge.start(job, num_ranks=1, environment={ENV_LEDGER: str(ledgers[0])})
    until(lambda: steps_begun(ledgers[0]) > 20 and has_checkpoint(tmp_path), "the first one has a checkpoint")
    zombie = first.rank_pid(0)
    first.freeze_rank(0)
    second = forge.start(job, num_ranks=1, environment={ENV_LEDGER: str(ledgers[1])})
    assert second.wait() == ExitCode.DONE, second.output
    os.kill(zombie, signal.SIGCONT)
    assert first.wait() == ExitCode.CHECKPOINT, first.output
    saved = read_manifest(newest(tmp_path))
    assert saved.attempt == 2
    assert saved.rows == 3200
    (mine,) = replay(ledgers[1]).values()
    (others,) = replay(ledgers[0]).values()
    begun = min(mine)
    account = {step: others[step] for step in range(1, begun)} | mine
    assert gaps(account) == []
    assert sum(step.rows for step in account.values()) == 3200


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kills", "rows_a_partition"), [(20, 4_000), (100, 20_000)], ids=["twenty", "hundred"])
def test_many_killed_ranks_leave_no_gap_and_nothing_twice(
    tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster, kills: int, rows_a_partition: int
) -> None:
    choose = random.Random(6)
    kill_at_random_steps(tmp_path, forge, kafka_broker, kills=kills, rows_a_partition=rows_a_partition, choose=choose)
