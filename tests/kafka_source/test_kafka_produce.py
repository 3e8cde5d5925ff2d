"""`rap produce` into a topic: what it confirms is there, and the source reads it as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from kafka_source.topics import received
from rap_contract.job import RAPJobSpec
from rap_trainer.cli import main
from rap_trainer.produce.kafka_topic import Topic, write_topic
from rap_trainer.produce.options import Produce
from rap_trainer.stream.kafka.source import KafkaSource
from servers.kafka_cluster import KafkaCluster
from servers.waiting import wait_until

ROWS = 250


@pytest.mark.kafka
@pytest.mark.parametrize("format_name", ["arrow", "json", "tsv"])
def test_what_is_produced_is_read_good_and_bad(
    kafka_broker: KafkaCluster, tmp_path: Path, format_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka_broker.create_topic()
    brokers = ",".join(kafka_broker.bootstrap_servers)
    arguments = ["produce", "--kafka", brokers, "--topic", topic, "--format", format_name, "--rows", str(ROWS)]
    assert main([*arguments, "--rows-per-message", "100", "--bad-ratio", "0.1"]) == 0
    assert f"{ROWS} rows in topic {topic}" in capsys.readouterr().out
    assert [record.key for record in received(kafka_broker, topic, 3)] == [b"0", b"1", b"2"]
    csv = {"hexColumns": ["cat_{0..25}"]} if format_name == "tsv" else {}
    source = {"bootstrapServers": kafka_broker.bootstrap_servers, "topic": topic, "format": format_name, "csv": csv}
    job = RAPJobSpec.model_validate(
        {
            "source": {"kafka": {**source, "errorBudget": {"ratio": 1.0}, "eventTime": {"column": "ts"}}},
            "columns": {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "int64"},
            "label": "label",
            "features": [{"columns": ["int_0"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": ROWS},
            "checkpoint": {"path": str(tmp_path / "checkpoints")},
        }
    )
    kafka_source = KafkaSource(job)
    try:
        wait_until(lambda: kafka_source.counts().messages == 3, limit_s=60, what="all messages")
        offer = kafka_source.offer()
        batch = kafka_source.take([offer.rows])
        bad = sum(kafka_source.counts().bad_rows.values())
        assert batch.num_rows + bad == ROWS
        assert 10 <= bad <= 45
        assert bool((batch.event_times_s_B > 1.7e9).all())
    finally:
        kafka_source.close()


@pytest.mark.kafka
def test_a_replayed_file_comes_at_its_rate_with_every_row(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    topic, file = kafka_broker.create_topic(), tmp_path / "day.tsv"
    fields = [["1", *(str(row) for _ in range(13)), *(f"{row:08x}" for _ in range(26))] for row in range(50)]
    file.write_text("".join("\t".join(row) + "\n" for row in fields))
    clock = [100.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    options = Produce(replay=file, rate=10.0)
    place = Topic(bootstrap_servers=tuple(kafka_broker.bootstrap_servers), topic=topic, rows_per_message=20)
    assert write_topic(options, place, now_s=lambda: clock[0], sleep=sleep) == 50
    assert clock[0] == pytest.approx(105.0), "50 rows at 10 a second"
    rows = [pa.ipc.open_stream(record.value).read_all() for record in received(kafka_broker, topic, 3)]
    assert [table.num_rows for table in rows] == [20, 20, 10]
    assert pa.concat_tables(rows).column("int_3").to_pylist() == list(range(50))


@pytest.mark.kafka
def test_rows_that_no_broker_takes_are_not_said_to_be_there(
    kafka_broker: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka_broker.create_topic(config={"max.message.bytes": "1000"})
    brokers = ",".join(kafka_broker.bootstrap_servers)
    assert main(["produce", "--kafka", brokers, "--topic", topic, "--rows", "100"]) == 1
    said = capsys.readouterr()
    assert "rows in topic" not in said.out
    assert f"rap produce: topic {topic}: MessageSizeTooLargeError" in said.err
    assert "; 0 rows were confirmed before; hint: put fewer rows into a message (--rows-per-message)" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kafka", "a:1"], "--kafka needs --topic"),
        (["--kafka", "a:1", "--topic", "t", "--format", "parquet"], "parquet is for --out"),
        (["--kafka", "a:1", "--topic", "t", "--mechanism", "PLAIN"], "--secrets and --mechanism go together"),
        (["--kafka", "a:1", "--topic", "t", "--rows-per-message", "0"], "rows per message must be at least 1"),
        (["--kafka", "a:1", "--topic", "t", "--format", "csv", "--mean-length", "3"], "csv holds no lists"),
        (["--out", "d", "--format", "json"], "JSON lines are for --kafka"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", *arguments]) == 2
    assert message in capsys.readouterr().err
