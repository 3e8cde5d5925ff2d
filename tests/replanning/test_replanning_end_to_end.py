"""Drift that a producer injects changes the plan on all ranks: real API server, operator process, nodes of processes, gloo."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from node_agent.agent import NodeAgent
from operator_world.on_server import OnServer
from rap_contract.validation import check_job
from replanning.cpu_profile import cpu_profile
from servers.waiting import wait_until
from train.small_jobs import document

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WINDOW_S = 15
SHORT, LONG = 4, 12
ROWS, EVERY_S = 120, 0.25
"""Of a file, and between two files."""


class Producer:
    """Writes a file of events several times a second; `length` is that of the lists."""

    def __init__(self, folder: Path) -> None:
        self.length = SHORT
        self._folder, self._stopping = folder, threading.Event()
        self._random = np.random.default_rng(0)
        self._number = 0
        folder.mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.write()

    def write(self) -> None:
        """One file, put in place at once."""
        table = {"label": pa.array(self._random.integers(0, 2, ROWS).astype("int32"))}
        table |= {f"int_{i}": pa.array(self._random.random(ROWS).astype("float32")) for i in range(3)}
        for i in range(3):
            ids = self._random.integers(0, 1000, (ROWS, self.length))
            table[f"cat_{i}"] = pa.array(list(ids), type=pa.list_(pa.int64()))
        aside = self._folder.parent / "aside.parquet"
        pq.write_table(pa.table(table), aside)
        self._number += 1
        aside.rename(self._folder / f"part-{self._number:06d}.parquet")


def job(shared: Path) -> dict[str, Any]:
    made = document(shared, source__files__follow=True, trainer__metricsPort=9400, trainer__maxWaitMs=200)
    made["metadata"]["name"] = "clicks"
    spec = made["spec"]
    spec["features"][1]["ops"] = [{"positiveModulus": {"modulus": 40}}]
    spec["restartPolicy"] = {"delaySeconds": 0}
    spec["checkpoint"]["intervalSeconds"] = 5
    spec["replanning"] = {
        "windowSeconds": WINDOW_S,
        "stabilizationSeconds": 5,
        "holdSeconds": 0,
        "minIntervalSeconds": 0,
        "plausibleRatio": 0,
        "threshold": 0.02,
        "triggers": {"exposedRatio": 0, "predictionRatio": 0},
    }
    pod = {
        "containers": [
            {
                "name": "trainer",
                "volumeMounts": [{"name": "data", "mountPath": str(shared)}],
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            }
        ],
        "volumes": [{"name": "data", "hostPath": {"path": str(shared)}}],
        "securityContext": {"runAsNonRoot": False},
        "terminationGracePeriodSeconds": 10,
    }
    spec["trainer"] |= {"nodes": 2, "podTemplate": {"spec": pod}}
    return made


def plans_reported(on_server: OnServer) -> list[str]:
    """The plan each rank says it runs."""
    found = []
    for pod in on_server.pods():
        address = pod["status"].get("podIP")
        with urllib.request.urlopen(f"http://{address}:9400/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found += [
            line.partition('plan="')[2].partition('"')[0]
            for line in text.splitlines()
            if line.startswith("rap_plan_info{")
        ]
    return found


def outcomes(on_server: OnServer) -> list[str]:
    """What was decided, oldest first, but for refusals to act."""
    records = on_server.status().get("replans", [])
    return [record["outcome"] for record in reversed(records) if record["outcome"] != "None"]


def test_drift_of_the_data_changes_the_plan_of_all_ranks_without_a_restart(
    on_server: OnServer, node_agent: NodeAgent, tmp_path: Path
) -> None:
    del node_agent
    shared = tmp_path / "shared"
    (shared / "checkpoints").mkdir(parents=True)
    checked = check_job(job(shared))
    profile = cpu_profile(checked, beside_s=0.0010, step_s=0.005, seconds_per_byte=1e-7)
    (shared / "checkpoints" / "profile.json").write_text(profile.to_json())
    with Producer(shared / "events") as producer:
        on_server.operator_process("--no-lease", "--scrape-interval-seconds", "1", log=tmp_path / "operator.log")
        on_server.create(job(shared))
        on_server.wait_phase("Running", limit_s=240)

        def reasons() -> list[str]:
            return [record["reason"] for record in on_server.status().get("replans", [])]

        wait_until(lambda: "Steady" in reasons(), limit_s=240, what="the job to be judged and steady", every_s=1.0)
        assert outcomes(on_server) == [], on_server.status()["replans"]
        pods = {pod["metadata"]["uid"] for pod in on_server.pods()}
        producer.length = LONG
        began_s = time.monotonic()

        def is_taken() -> str:
            plans = set(plans_reported(on_server))
            return plans.pop() if len(plans) == 1 and plans != {"none"} else ""

        try:
            plan = wait_until(is_taken, limit_s=240, what="all ranks to run a new plan", every_s=0.5)
        except TimeoutError:
            status = on_server.status()
            pytest.fail(f"no new plan: {json.dumps([status.get('replans'), status.get('replanning')])}")
        took_s = time.monotonic() - began_s
        print(f"from the first long list to a new plan on all ranks: {took_s:.1f} s, of which a window of {WINDOW_S} s")
        wait_until(lambda: "Switched" in outcomes(on_server), limit_s=60, what="the operator to see it", every_s=0.5)
    status = on_server.status()
    switched = next(record for record in status["replans"] if record["outcome"] == "Switched")
    assert switched["plan"] == plan
    assert outcomes(on_server)[:2] == ["Applying", "Switched"]
    assert status["attempt"]["number"] == 1
    assert {pod["metadata"]["uid"] for pod in on_server.pods()} == pods
    wait_until(
        lambda: plan in on_server.cluster.kubectl("get", "rj", "-n", on_server.namespace),
        limit_s=60,
        what="the plan in the printed table",
        every_s=0.5,
    )
    story = on_server.cluster.kubectl("describe", "rj", "clicks", "-n", on_server.namespace)
    assert story.index("ReplanApplying") < story.index("ReplanSwitched")
