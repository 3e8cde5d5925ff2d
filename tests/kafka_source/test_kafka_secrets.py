"""Log-in from mounted files, and no secret anywhere it could be seen."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from kafka_source.topics import arrow, ranks, rows_of, send, spec, table, until
from prometheus_client import generate_latest
from rap_contract import metrics
from rap_trainer.cli import main
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.stream.kafka.settings import ENV_SECRETS
from rap_trainer.stream.kafka.source import KafkaSourceOptions
from rap_trainer.stream.source import SourceError
from servers.kafka_cluster import PASSWORD, USER, KafkaCluster

pytestmark = pytest.mark.kafka

PLANTED = "planted-0f9a7c"


def unsecured_token() -> str:
    """What Kafka's own validator for tests takes: a signed token without a signature."""
    now_s = int(time.time())
    parts: list[dict[str, object]] = [{"alg": "none"}, {"sub": USER, "iat": now_s - 60, "exp": now_s + 3600}]
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, ""])


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kafka_broker: KafkaCluster) -> Path:
    directory = tmp_path / "secrets" / "kafka-auth"
    directory.mkdir(parents=True)
    (directory / "username").write_text(USER)
    (directory / "password").write_text(f"{PASSWORD}\n")
    (directory / "token").write_text(unsecured_token())
    (directory / "ca.crt").write_bytes(kafka_broker.ca_file.read_bytes())
    (directory / "tls.crt").write_bytes(kafka_broker.client_certificate.certificate.read_bytes())
    (directory / "tls.key").write_bytes(kafka_broker.client_certificate.key.read_bytes())
    monkeypatch.setenv(ENV_SECRETS, str(directory.parent))
    return directory


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "TLS"])
def test_rows_come_over_tls_and_no_secret_is_seen_anywhere(
    kafka_broker: KafkaCluster,
    tmp_path: Path,
    secrets: Path,
    mechanism: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, dead = kafka_broker.create_topic(), kafka_broker.create_topic("dead")
    send(kafka_broker, topic, [arrow(table(range(8), bad=[3]))])
    servers = kafka_broker.tls_servers if mechanism == "TLS" else kafka_broker.sasl_options()["bootstrap_servers"]
    auth = {"secretName": "kafka-auth", "mechanism": mechanism}
    job = spec(kafka_broker, topic, tmp_path, bootstrapServers=servers, auth=auth, deadLetter={"topic": dead})
    store = MetricStore(metrics.TRAINER)
    with caplog.at_level("DEBUG"), ranks(job) as sources:
        assert rows_of(sources, 7) == [[0, 1, 2, 4, 5, 6, 7]]
        sources[0].settle()
        sources[0].saved(sources[0].positions())
        assert sources[0].counts().dead_letters == {"topic": 1, "file": 0}
        sources[0].meter(store)
        pid = sources[0].reader_pid
        process = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    captured, shown = capfd.readouterr(), generate_latest(store).decode()
    keys = (secrets / "tls.key").read_text().splitlines()
    for text in (captured.out, captured.err, caplog.text, shown, job.model_dump_json(), process.decode()):
        for secret in (PASSWORD, (secrets / "token").read_text(), keys[1]):
            assert secret not in text


def test_what_is_produced_over_a_log_in_is_confirmed_and_no_secret_is_seen(
    kafka_broker: KafkaCluster,
    secrets: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafka_broker.create_topic()
    servers = ",".join(kafka_broker.sasl_options()["bootstrap_servers"])
    login = ["--secrets", str(secrets), "--mechanism", "SCRAM-SHA-512"]
    with caplog.at_level("DEBUG"):
        assert main(["produce", "--kafka", servers, "--topic", topic, *login, "--rows", "30"]) == 0
        small = kafka_broker.create_topic(config={"max.message.bytes": "100"})
        assert main(["produce", "--kafka", servers, "--topic", small, *login, "--rows", "30"]) == 1
    captured = capfd.readouterr()
    assert f"30 rows in topic {topic}" in captured.out
    assert "MessageSizeTooLargeError" in captured.err
    for text in (captured.out, captured.err, caplog.text):
        assert PASSWORD not in text


def test_a_client_without_the_certificate_is_refused(kafka_broker: KafkaCluster, tmp_path: Path, secrets: Path) -> None:
    (secrets / "tls.crt").unlink()
    auth = {"secretName": "kafka-auth", "mechanism": "TLS"}
    job = spec(kafka_broker, "any", tmp_path, bootstrapServers=kafka_broker.tls_servers, auth=auth)
    with ranks(job) as sources, pytest.raises(SourceError, match=r"tls\.crt: No such file.*secretName"):
        sources[0].offer()


def test_a_renewed_password_is_used_by_the_next_connection(
    kafka_broker: KafkaCluster, tmp_path: Path, secrets: Path
) -> None:
    user = f"bob-{tmp_path.name}"
    topic = kafka_broker.create_topic()
    (secrets / "username").write_text(user)

    def renew(password: str) -> None:
        admin = kafka_broker.admin()
        made = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password)
        assert admin.alter_user_scram_credentials([made]) == {user: None}
        admin.close()
        (secrets / "password").write_text(password)

    renew("first-secret")
    servers = kafka_broker.sasl_options()["bootstrap_servers"]
    send(kafka_broker, topic, [arrow(table(range(8)))])
    job = spec(kafka_broker, topic, tmp_path, bootstrapServers=servers, auth={"secretName": "kafka-auth"})
    with ranks(job) as sources:
        assert rows_of(sources, 8) == [list(range(8))]
        renew("second-secret")
        kafka_broker.brokers[0].restart()
        send(kafka_broker, topic, [arrow(table(range(8, 16)))])
        assert rows_of(sources, 8) == [list(range(8, 16))]


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
