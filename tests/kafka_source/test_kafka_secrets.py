"""Log-in from mounted files, and no secret anywhere it could be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_source.topics import arrow, ranks, rows_of, send, spec, table, until
from rap_trainer.stream.kafka.settings import ENV_SECRETS
from rap_trainer.stream.kafka.source import KafkaSourceOptions
from rap_trainer.stream.source import SourceError
from servers.kafka_cluster import PASSWORD, USER, KafkaCluster

pytestmark = pytest.mark.kafka

PLANTED = "planted-0f9a7c"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_broker: KafkaCluster) -> Path:
    directory = tmp_path / "secrets" / "kafka-auth"
    directory.mkdir(parents=True)
    (directory / "username").write_text(USER)
    (directory / "password").write_text(f"{PASSWORD}\n")
    (directory / "token").write_text("unused")
    (directory / "ca.crt").write_bytes(kafka_broker.ca_file.read_bytes())
    monkeypatch.setenv(ENV_SECRETS, str(directory.parent))
    return directory


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_rows_come_over_tls_with_a_log_in(
    kafka_broker: KafkaCluster, tmp_path: Path, secrets: Path, mechanism: str
) -> None:
    topic = kafka_broker.create_topic()
    send(kafka_broker, topic, [arrow(table(range(8)))])
    servers = kafka_broker.sasl_options()["bootstrap_servers"]
    auth = {"secretName": "kafka-auth", "mechanism": mechanism}
    with ranks(spec(kafka_broker, topic, tmp_path, bootstrapServers=servers, auth=auth)) as sources:
        assert rows_of(sources, 8) == [list(range(8))]
        pid = sources[0].reader_pid
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert PASSWORD.encode() not in seen


def test_a_refused_log_in_is_said_without_the_secret(
    kafka_broker: KafkaCluster,
    tmp_path: Path,
    secrets: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafka_broker.create_topic()
    (secrets / "password").write_text(PLANTED)
    servers = kafka_broker.sasl_options()["bootstrap_servers"]
    job = spec(kafka_broker, topic, tmp_path, bootstrapServers=servers, auth={"secretName": "kafka-auth"})
    with (
        caplog.at_level("DEBUG"),
        ranks(job, options=KafkaSourceOptions(wait_s=5.0)) as sources,
        pytest.raises(SourceError, match=r"spec\.source\.kafka\..*auth") as caught,
    ):
        until(sources, lambda: False, "the refusal")
    captured = capfd.readouterr()
    for text in (str(caught.value), captured.out, captured.err, caplog.text, job.model_dump_json()):
        assert PLANTED not in text


def test_a_missing_key_of_the_secret_is_named(kafka_broker: KafkaCluster, tmp_path: Path, secrets: Path) -> None:
    (secrets / "username").unlink()
    job = spec(kafka_broker, "any", tmp_path, auth={"secretName": "kafka-auth"})
    with ranks(job) as sources, pytest.raises(SourceError, match="kafka-auth/username: No such file"):
        sources[0].offer()


def test_no_reader_starts_without_the_fast_checksum(
    kafka_broker: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "crc32c.py").write_text("raise ImportError('hidden')")
    monkeypatch.syspath_prepend(str(hidden))
    with ranks(spec(kafka_broker, "any", tmp_path)) as sources, pytest.raises(SourceError, match="no fast checksum"):
        sources[0].offer()
