"""A topic is trained by a RAPJob while pod, node, operator and broker die: every row's effect is in the model once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka_source.topics import arrow, send
from node_agent.agent import NodeAgent
from node_agent.plugin import RunNodes
from operator_world.on_server import ROOT, OnServer
from operator_world.pods import pod_sharing
from rap_contract.crd import COLUMNS
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from servers.kafka_cluster import KafkaCluster
from servers.kube_api import Object
from servers.waiting import wait_until
from train.saved_state import newest
from train.small_jobs import NUM_DENSE, NUM_SPARSE, document

pytestmark = [pytest.mark.cluster, pytest.mark.kafka]

BATCH = 8  # rows of a rank's step, of a partition's too: there are as many partitions as ranks
NODES = 2
START_S = 480.0  # a busy machine imports TorchRec four times


class Story:
    """The job, its topic and its operator process."""

    def __init__(
        self, on_server: OnServer, agent: NodeAgent, kafka: KafkaCluster, folder: Path, *, ranks_per_node: int
    ) -> None:
        self.on_server, self.agent, self.kafka, self.folder = on_server, agent, kafka, folder
        self.num_ranks = NODES * ranks_per_node
        self.topic = kafka.create_topic("clicks", num_partitions=self.num_ranks)
        self.ledger = folder / "ledger"
        self.num_fed = 0
        self._ranks_per_node = ranks_per_node
        self._operators = 0
        self.operator = self.start_operator()

    def start_operator(self) -> subprocess.Popen[str]:
        """A new process of the same identity, as a Deployment's next pod would take the lease over."""
        self._operators += 1
        arguments = ("--lease-namespace", self.on_server.namespace, "--identity", "the-pod")
        options = ("--force-delete-after-seconds", "5", "--scrape-interval-seconds", "1")
        log = self.folder / f"operator-{self._operators}.log"
        self.operator = self.on_server.operator_process(*arguments, *options, log=log)
        return self.operator

    def submit(self, *, total_steps: int) -> None:
        """Creates the job, which ends after so many steps."""
        job = document(
            self.folder,
            source={"kafka": {"bootstrapServers": self.kafka.bootstrap_servers, "topic": self.topic}},
            trainer__batchSizePerGpu=BATCH,
            trainer__nodes=NODES,
            trainer__processesPerNode=self._ranks_per_node,
            trainer__metricsPort=9400,
            trainer__maxSteps=total_steps,
            checkpoint__intervalSeconds=0.5,
        )
        job["metadata"]["name"] = "clicks"
        job["spec"]["features"][1]["ops"] = [{"positiveModulus": {"modulus": 40}}]
        here = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"  # the pods run what is tested
        pod = pod_sharing(self.folder, grace_s=5, environment={ENV_LEDGER: str(self.ledger), "PYTHONPATH": here})
        pod["tolerations"] = []  # the test cluster's own: out of a lost node in seconds
        job["spec"]["trainer"]["podTemplate"] = {"spec": pod}
        self.on_server.create(job)

    def feed(self, steps: int) -> None:
        """Sends rows for so many steps of all ranks."""
        for partition in range(self.num_ranks):
            send(self.kafka, self.topic, _messages(steps, seed=1000 * self.num_fed + partition), partition)
        self.num_fed += steps

    def trained(self) -> int:
        """Steps in the model as it is now."""
        account = replay(self.ledger) if self.ledger.is_dir() else {}
        return max(account.get(0, {0: None}), default=0)

    def trains(self, steps: int) -> None:
        """Waits until so many more steps are trained, or all there are rows for."""
        wanted = min(self.trained() + steps, self.num_fed)
        wait_until(lambda: self.trained() >= wanted, limit_s=START_S, what=f"step {wanted}", every_s=0.1)

    def running_again(self, before: int) -> dict[str, Any]:
        """Waits for a later attempt that runs; never are pods of two there at a time."""

        def reached() -> dict[str, Any] | None:
            attempts = self.on_server.pod_attempts()
            assert len(attempts) <= 1, f"pods of attempts {attempts} at a time"
            status = self.on_server.status()
            is_later = status.get("phase") == "Running" and status["attempt"]["number"] > before
            return status if is_later else None

        found = wait_until(reached, limit_s=START_S, what=f"an attempt after {before}", every_s=0.2)
        assert found is not None
        return found

    def audit(self, total_steps: int) -> None:
        """No gap, no overlap, all rows, and the model that is left is the whole one."""
        account = replay(self.ledger)
        assert sorted(account) == list(range(self.num_ranks))
        ends: dict[str, int] = {}
        for steps in account.values():
            assert len(steps) == total_steps
            assert gaps(steps) == []
            found = {unit: end.offset for step in steps.values() for unit, (_, end) in step.spans.items()}
            ends |= {unit: offset for unit, offset in found.items() if "/" in unit}  # the others are topic identities
        rows = sum(step.rows for steps in account.values() for step in steps.values())
        assert rows == total_steps * BATCH * self.num_ranks
        assert ends == {f"{self.topic}/{partition}": total_steps for partition in range(self.num_ranks)}
        manifest = read_manifest(newest(self.folder))
        assert (manifest.step, manifest.attempt) == (total_steps, self.on_server.attempt())


def _empty_columns(job: Object) -> list[str]:
    """Printer columns that a job leaves empty."""
    found = []
    for name, _, path, _ in COLUMNS:
        value: Any = job
        for part in path.strip(".").split("."):
            value = (value or {}).get(part)
        if value is None or value == "":
            found.append(name)
    return found


def _messages(steps: int, *, seed: int) -> list[bytes]:
    """A message of BATCH rows for each step."""
    draw = np.random.default_rng(seed)
    rows = steps * BATCH
    columns: dict[str, Any] = {"label": pa.array(draw.integers(0, 2, rows), pa.int32())}
    columns |= {f"int_{i}": pa.array(draw.random(rows), pa.float32()) for i in range(NUM_DENSE)}
    ids = draw.integers(0, 1000, (NUM_SPARSE, rows, 2))
    columns |= {f"cat_{i}": pa.array(list(ids[i]), pa.list_(pa.int64())) for i in range(NUM_SPARSE)}
    whole = pa.table(columns)
    return [arrow(whole.slice(begin, BATCH)) for begin in range(0, rows, BATCH)]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that all pods mount at the same place, as they would a network volume."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def _pod_on(on_server: OnServer, index: int) -> tuple[str, str]:
    """Name and node of the pod of an index."""
    key = "batch.kubernetes.io/job-completion-index"
    pod = next(p for p in on_server.pods() if p["metadata"]["labels"][key] == str(index))
    return str(pod["metadata"]["name"]), str(pod["spec"]["nodeName"])


@pytest.mark.slow  # about two minutes on two quiet cores
@pytest.mark.timeout(600)
def test_all_of_them_dying_at_once_costs_an_attempt_and_no_row(
    on_server: OnServer, run_nodes: RunNodes, kafka_broker: KafkaCluster, shared: Path
) -> None:
    agent = run_nodes(3, host_ports=kafka_broker.client_ports)
    story = Story(on_server, agent, kafka_broker, shared, ranks_per_node=1)
    story.feed(60)
    story.submit(total_steps=100)
    on_server.wait_phase("Running", limit_s=START_S)
    story.trains(10)
    (victim, _), (_, lost) = _pod_on(on_server, 0), _pod_on(on_server, 1)
    on_server.kill(story.operator)
    kafka_broker.brokers[0].kill()
    agent.kill(on_server.namespace, victim)
    agent.cordon(lost)  # or the next attempt's pods may be sent there before the loss is known
    agent.lose_node(lost)
    kafka_broker.brokers[0].start()
    story.start_operator()
    status = story.running_again(1)
    assert [attempt["endReason"] for attempt in status["history"]] == ["Killed"], status["history"]
    story.feed(40)
    on_server.wait_phase("Completed", limit_s=START_S)
    story.audit(100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pod_broker_operator_and_node_dying_in_turn_leave_no_gap_and_nothing_twice(
    on_server: OnServer, run_nodes: RunNodes, kafka_broker: KafkaCluster, shared: Path
) -> None:
    agent = run_nodes(3, host_ports=kafka_broker.client_ports)
    story = Story(on_server, agent, kafka_broker, shared, ranks_per_node=2)
    story.feed(60)
    story.submit(total_steps=400)
    on_server.wait_phase("Running", limit_s=START_S)
    story.trains(15)

    before = on_server.attempt()
    agent.kill(on_server.namespace, _pod_on(on_server, 1)[0])
    status = story.running_again(before)
    failures = status["restarts"]["failures"]
    assert status["history"][0]["endReason"] == "Killed", status["history"]

    story.feed(60)
    story.trains(15)
    before = on_server.attempt()
    kafka_broker.brokers[0].kill()
    kafka_broker.brokers[0].start()
    story.feed(60)
    story.trains(60)
    assert on_server.attempt() == before  # a broker's absence is waited for

    story.feed(60)
    story.trains(10)
    on_server.kill(story.operator)
    agent.kill(on_server.namespace, _pod_on(on_server, 0)[0])
    story.start_operator()
    status = story.running_again(before)
    assert status["restarts"]["failures"] == failures + 1, status["history"]

    story.feed(60)
    story.trains(15)
    before = on_server.attempt()
    agent.lose_node(_pod_on(on_server, 1)[1])
    status = story.running_again(before)
    assert status["restarts"]["failures"] == failures + 1, status["history"]  # a lost node is nobody's failure
    assert "Disruption" in {
        attempt["endClass"] for attempt in status["history"][: status["attempt"]["number"] - before]
    }

    path = f"{on_server.path}/clicks"
    wait_until(lambda: not _empty_columns(on_server.api.get(path)), limit_s=START_S, what="every column", every_s=1.0)

    story.feed(400 - story.num_fed)
    status = on_server.wait_phase("Completed", limit_s=START_S)
    story.audit(400)
    assert status["metrics"]["samplesPerSecond"] > 0
