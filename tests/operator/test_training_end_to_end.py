"""`kubectl apply` of a RAPJob really trains: operator, two nodes of two ranks, gloo, files, a checkpoint, a lost pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_agent.agent import NodeAgent
from operator_world.on_server import OnServer
from operator_world.pods import pod_sharing
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.cli import main as rap
from servers.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 20_000


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that all pods mount at the same place, as they would a network volume."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def job(shared: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(Path("manifests/samples/clicks-files.yaml").read_text())
    spec = document["spec"]
    spec["source"]["files"] |= {"path": str(shared / "events"), "follow": False}
    spec["checkpoint"] = {"path": str(shared / "checkpoints"), "intervalSeconds": 1, "keep": 2}
    spec["restartPolicy"] = {"delaySeconds": 0}
    pod = pod_sharing(shared, grace_s=60)
    spec["trainer"] = {"nodes": 2, "processesPerNode": 2, "batchSizePerGpu": 64, "podTemplate": {"spec": pod}}
    return document


def test_a_job_trains_on_two_nodes_loses_a_pod_and_ends_with_every_row_counted_once(
    on_server: OnServer, node_agent: NodeAgent, shared: Path, tmp_path: Path
) -> None:
    assert rap(["produce", "--out", str(shared / "events"), "--rows", str(ROWS)]) == 0
    on_server.operator_process("--no-lease", "--scrape-interval-seconds", "1", log=tmp_path / "operator.log")
    on_server.create(job(shared))
    on_server.wait_phase("Running", limit_s=240)

    def checkpoints() -> list[Path]:
        return list((shared / "checkpoints").glob("step-*"))

    wait_until(checkpoints, limit_s=240, what="a checkpoint", every_s=0.2)
    victim = on_server.pods()[1]["metadata"]["name"]
    node_agent.kill(on_server.namespace, victim)
    status = on_server.wait_phase("Completed", limit_s=400)
    assert status["metrics"]["samplesPerSecond"] > 0
    assert status["metrics"]["step"] > 0
    row = on_server.cluster.kubectl("get", "rj", "-n", on_server.namespace)
    assert "Completed" in row
    assert status["attempt"]["number"] == 2, json.dumps(status["attempt"])
    assert status["restarts"]["byReason"] == {"Killed": 1, "Completed": 1}
    last = read_manifest(max(checkpoints()))
    assert (last.attempt, last.world_size, last.rows) == (2, 4, ROWS)
    assert last.step == -(-ROWS // 256)  # full batches of 4 ranks x 64 rows: none was trained twice or left out
