"""kill -9 of ranks while they train a topic, at random moments and at the worst: every row's effect is in the model once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pyarrow as pa
import pytest
from kafka_source.topics import arrow, send
from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import COMMIT, WRITING, checkpoints, read_manifest
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from servers.kafka_cluster import KafkaCluster
from train.forge import Forge, Run, until
from train.saved_state import newest
from train.small_jobs import NUM_DENSE, NUM_SPARSE, write_job
from train.watching import has_checkpoint, steps_begun

pytestmark = pytest.mark.kafka

BATCH, RANKS, PARTITIONS, ROWS_A_MESSAGE = 8, 2, 4, 10
REST_S = 3600.0  # thousands of steps are left after the last kill, with a checkpoint every 0.3 s
LOOK_S = 0.0005  # for what lasts some milliseconds
Moment = Literal["step", "writing", "marked"]
"""When a rank is killed: after some more steps; while a checkpoint is being written; when a checkpoint has its marker and
its offsets are not committed to Kafka."""


def messages(rows: int, seed: int) -> list[bytes]:
    draw = np.random.default_rng(seed)
    columns: dict[str, Any] = {"label": pa.array(draw.integers(0, 2, rows), pa.int32())}
    columns |= {f"int_{i}": pa.array(draw.random(rows), pa.float32()) for i in range(NUM_DENSE)}
    ids = draw.integers(0, 1000, (NUM_SPARSE, rows, 2))
    columns |= {f"cat_{i}": pa.array(list(ids[i]), pa.list_(pa.int64())) for i in range(NUM_SPARSE)}
    whole = pa.table(columns)
    return [arrow(whole.slice(begin, ROWS_A_MESSAGE)) for begin in range(0, rows, ROWS_A_MESSAGE)]


def kill_and_audit(
    folder: Path,
    forge: Forge,
    cluster: KafkaCluster,
    *,
    moments: Sequence[Moment],
    rows_a_partition: int,
    choose: random.Random,
    partitions: int = PARTITIONS,
) -> None:
    """Trains a topic while ranks are killed, and audits the ledger. Of one partition both ranks train slices."""
    topic, kills = cluster.create_topic("kills", num_partitions=partitions), len(moments)
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
    for moment in moments:
        # steps begun, repeated ones too: so many more are always reached before the end
        wanted = steps_begun(ledger) + choose.randrange(1, max(2, total // (2 * kills)))
        until(lambda wanted=wanted: steps_begun(ledger) >= wanted, f"{wanted} steps are begun")
        kill_at(run, folder / "checkpoints", moment, choose.randrange(RANKS))
    assert run.wait(REST_S) == ExitCode.DONE, run.output
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


def kill_at(run: Run, checkpoint_root: Path, moment: Moment, rank: int) -> None:
    """kill -9 of a rank at such a moment."""
    match moment:
        case "writing":
            before = writings(checkpoint_root)
            soon(lambda: bool(writings(checkpoint_root) - before), "a checkpoint is being written")
            run.kill_rank(rank)
        case "marked":
            with frozen_readers(run):  # they commit for the ranks, so nothing is
                before = complete(checkpoint_root)
                soon(lambda: bool(complete(checkpoint_root) - before), "a checkpoint is complete")
                run.kill_rank(rank)
        case "step":
            run.kill_rank(rank)


def writings(checkpoint_root: Path) -> set[Path]:
    return set(checkpoint_root.glob(f"{WRITING}*"))


def complete(checkpoint_root: Path) -> set[Path]:
    return {path for path in checkpoints(checkpoint_root) if (path / COMMIT).exists()}


def soon(true: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until_s, what
        time.sleep(LOOK_S)


@contextmanager
def frozen_readers(run: Run) -> Iterator[None]:
    """The reader processes of all ranks stand still; training goes on with what they have read ahead."""
    children = [child for rank in range(RANKS) for child in psutil.Process(run.rank_pid(rank)).children()]
    readers = [child for child in children if "rap_trainer.stream.kafka.reader" in child.cmdline()]
    assert readers
    for reader in readers:
        reader.suspend()
    try:
        yield
    finally:
        for reader in readers:
            with suppress(psutil.NoSuchProcess):
                reader.resume()


def test_killed_ranks_leave_no_gap_and_nothing_twice(tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster) -> None:
    choose = random.Random(5)
    kill_and_audit(tmp_path, forge, kafka_broker, moments=["step", "step"], rows_a_partition=400, choose=choose)


def test_ranks_killed_inside_a_checkpoint_and_before_its_offsets_are_committed_leave_no_gap(
    tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster
) -> None:
    choose = random.Random(8)
    kill_and_audit(tmp_path, forge, kafka_broker, moments=["writing", "marked"], rows_a_partition=2400, choose=choose)


def test_killed_ranks_that_share_one_partition_leave_no_gap_either(
    tmp_path: Path, forge: Forge, kafka_broker: KafkaCluster
) -> None:
    kill_and_audit(
        tmp_path, forge, kafka_broker, moments=["step"], rows_a_partition=1600, choose=random.Random(7), partitions=1
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
    kinds: list[Moment] = ["step", "writing", "marked"]
    moments = choose.choices(kinds, weights=(2, 1, 1), k=kills)
    kill_and_audit(tmp_path, forge, kafka_broker, moments=moments, rows_a_partition=rows_a_partition, choose=choose)
    print("kills", Counter(moments))
