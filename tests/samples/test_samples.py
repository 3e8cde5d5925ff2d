"""Every sample is valid, is taken by a real API server and by the operator, and trains where a CPU is enough."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from rap_contract.job import RAPJob
from rap_operator.observe import judge
from rap_trainer.cli import main as rap
from rap_trainer.jobfile import load_job

if TYPE_CHECKING:
    from servers.kafka_cluster import KafkaCluster
    from servers.kubernetes_cluster import KubernetesCluster

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"
FILES = sorted(SAMPLES.glob("*.yaml"))
NEEDS = sorted((SAMPLES / "needs").glob("*.yaml"))
ALL = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
ROWS = 600
Object = dict[str, Any]


def document(path: Path) -> Object:
    found: Object = yaml.safe_load(path.read_text())
    return found


@ALL
def test_a_sample_is_valid(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rap(["validate", str(path)]) == 0
    assert ": valid (" in capsys.readouterr().out


@ALL
def test_a_sample_says_what_it_shows_and_is_in_the_list(path: Path) -> None:
    assert path.read_text().startswith("# ")
    assert f"[{path.name}]({path.name})" in (SAMPLES / "README.md").read_text()


def test_the_samples_show_what_they_promise() -> None:
    jobs: dict[str, RAPJob] = {path.stem: load_job(path) for path in FILES}
    kafka = jobs["kafka-sasl-tls"].spec.source.kafka
    assert kafka is not None
    assert kafka.auth is not None
    assert kafka.auth.tls
    trainer = jobs["two-nodes-of-gpus"].spec.trainer
    assert (trainer.nodes, trainer.gpus_per_node) == (2, 8)
    assert "kueue.x-k8s.io/queue-name" in jobs["kueue"].metadata.labels
    assert jobs["propose"].spec.replanning.mode == "Propose"
    assert jobs["model-factory"].spec.model.factory == "ads_models:wide_and_deep"
    assert jobs["publish"].spec.publish is not None
    named = set(re.findall(r"\(needs/([a-z-]+)\.yaml\)", (SAMPLES / "README.md").read_text()))
    assert named == {path.stem for path in NEEDS}


@pytest.mark.cluster
def test_all_samples_are_taken_by_a_real_server_and_by_the_operator(
    kubernetes_cluster: KubernetesCluster, namespace: str
) -> None:
    from operator_world.on_server import install_crd

    install_crd(kubernetes_cluster)
    files = [*FILES, *(path for path in NEEDS if document(path)["apiVersion"] == "v1")]  # Kueue's kinds are not served
    for path in files:
        kubernetes_cluster.kubectl("apply", "-n", namespace, "--validate=strict", "-f", str(path))
    taken = kubernetes_cluster.api.items(f"/apis/rap.dev/v1alpha1/namespaces/{namespace}/rapjobs")
    assert len(taken) == len(FILES)
    for job in taken:
        judged = judge({"apiVersion": "rap.dev/v1alpha1", "kind": "RAPJob", **job})
        assert judged.problems == (), job["metadata"]["name"]
    kubernetes_cluster.kubectl("apply", "-n", namespace, *(word for path in FILES for word in ("-f", str(path))))


def criteo_lines(folder: Path) -> None:
    """As the logs are: tabs, no header, hexadecimal categories, holes."""
    folder.mkdir()
    lines = []
    for row in range(ROWS):
        numbers = ["" if (row + i) % 7 == 0 else str(row * i % 50) for i in range(13)]
        categories = ["" if (row + i) % 11 == 0 else f"{row * 2654435761 * (i + 1) % 2**32:08x}" for i in range(26)]
        lines.append("\t".join([str(row % 3 == 0).replace("True", "1").replace("False", "0"), *numbers, *categories]))
    (folder / "day_0.tsv").write_text("\n".join(lines) + "\n")


def events(folder: Path) -> None:
    assert rap(["produce", "--out", str(folder), "--rows", str(ROWS)]) == 0


def shrunk(job: Object, folder: Path) -> Object:
    """The sample with its folders in `folder`, one rank, small batches, and an end."""
    spec = job["spec"]
    spec["source"]["files"] |= {"path": str(folder / "events"), "follow": False}
    if "deadLetter" in spec["source"]["files"]:
        spec["source"]["files"]["deadLetter"] = {"path": str(folder / "dead")}
    for part in ("checkpoint", "publish"):
        if part in spec:
            spec[part]["path"] = str(folder / part)
    spec["trainer"] = {"processesPerNode": 1, "batchSizePerGpu": 128, "metricsPort": 0}
    return job


def run(job: Object, folder: Path, **variables: str) -> str:
    """`rap run` of a job in a process of its own; everything it said."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}:{folder}", **variables}
    command = [sys.executable, "-m", "rap_trainer.cli", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


RUNS: list[tuple[str, Callable[[Path], None]]] = [
    ("criteo-files", criteo_lines),
    ("model-factory", events),
    ("clicks-files", events),
    ("kueue", events),
    ("propose", events),
    ("publish", events),
]


@pytest.mark.parametrize(
    ("name", "data"),
    [pytest.param(n, d, id=n, marks=[] if n == "criteo-files" else pytest.mark.slow) for n, d in RUNS],
)
@pytest.mark.timeout(900)
def test_a_sample_trains_on_a_cpu(name: str, data: Callable[[Path], None], tmp_path: Path) -> None:
    data(tmp_path / "events")
    for module, text in document(SAMPLES / "needs" / "ads-models.yaml")["data"].items():
        (tmp_path / module).write_text(text)
    said = run(shrunk(document(SAMPLES / f"{name}.yaml"), tmp_path), tmp_path)
    assert "Ended: the source has ended (exit code 0)" in said
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoint").glob("step-*")]
    assert max(steps) == -(-ROWS // 128)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_kafka_sample_trains_on_a_cpu_behind_sasl_and_tls(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    login = kafka_broker.sasl_options("SCRAM-SHA-512")
    secret = tmp_path / "secrets" / "kafka-auth"
    secret.mkdir(parents=True)
    (secret / "username").write_text(login["sasl_plain_username"])
    (secret / "password").write_text(login["sasl_plain_password"])
    (secret / "ca.crt").write_bytes(kafka_broker.ca_file.read_bytes())
    servers, topic = login["bootstrap_servers"], kafka_broker.create_topic("clicks")
    place = ["--kafka", ",".join(servers), "--topic", topic, "--secrets", str(secret), "--mechanism", "SCRAM-SHA-512"]
    assert rap(["produce", *place, "--rows", str(ROWS), "--rows-per-message", "100"]) == 0
    job = document(SAMPLES / "kafka-sasl-tls.yaml")
    spec = job["spec"]
    spec["source"]["kafka"] |= {
        "bootstrapServers": servers,
        "topic": topic,
        "deadLetter": {"path": str(tmp_path / "dead")},
    }
    spec["checkpoint"]["path"] = str(tmp_path / "checkpoint")
    spec["features"][1]["table"]["rows"] = 1000
    spec["trainer"] = {"batchSizePerGpu": 128, "metricsPort": 0, "maxSteps": 3}
    said = run(job, tmp_path, RAP_SECRETS=str(secret.parent))
    assert "(exit code 0)" in said
    assert login["sasl_plain_password"] not in said
    steps = [int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoint").glob("step-*")]
    assert steps == [3]


def test_every_sample_that_a_cpu_can_train_is_run() -> None:
    elsewhere = {"kafka-sasl-tls", "two-nodes-of-gpus"}  # above; 16 GPUs
    assert {name for name, _ in RUNS} | elsewhere == {path.stem for path in FILES}
