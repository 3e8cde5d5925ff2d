"""Drift that a producer injects changes the plan on all ranks: real API server, operator process, nodes of processes, gloo.

How long each part takes is measured by `tests/benchmarks/replan_latency.py`; here it is what follows from what.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_agent.agent import NodeAgent
from operator_world.on_server import OnServer
from rap_contract.metrics import PLAN_SWITCHES
from rap_operator.naming import base, plan_name
from rap_operator.replanning.plan_config import PLAN_KEY, in_force
from replanning.drifting_job import LONG, Producer, job, outcomes, pages, plans_reported, profile_into, samples
from servers.waiting import wait_until

DRIFT = 1.0
"""Lists three times as long are a change by two; less would be a window with short ones in it."""
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_drift_of_the_data_changes_the_plan_of_all_ranks_without_a_restart(
    on_server: OnServer, node_agent: NodeAgent, tmp_path: Path
) -> None:
    del node_agent
    shared = tmp_path / "shared"
    profile_into(shared)
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

        def is_taken() -> str:
            plans = set(plans_reported(on_server))
            return plans.pop() if len(plans) == 1 and plans != {"none"} else ""

        try:
            plan = wait_until(is_taken, limit_s=240, what="all ranks to run a new plan", every_s=0.5)
        except TimeoutError:
            status = on_server.status()
            pytest.fail(f"no new plan: {json.dumps([status.get('replans'), status.get('replanning')])}")
        wait_until(lambda: "Switched" in outcomes(on_server), limit_s=60, what="the operator to see it", every_s=0.5)
        switches = [dict(samples(page, PLAN_SWITCHES.name)) for page in pages(on_server)]
    status = on_server.status()
    assert outcomes(on_server)[:2] == ["Applying", "Switched"]
    applying, switched = (
        next(record for record in status["replans"] if record["outcome"] == outcome)
        for outcome in outcomes(on_server)[:2]
    )
    assert applying["plan"] == switched["plan"] == plan
    assert applying["reason"] == switched["reason"] == "WorkloadDrift"
    assert applying["time"] <= switched["time"]
    assert applying["numbers"]["workloadDrift"] > DRIFT
    assert applying["numbers"]["predictedAfterSeconds"] < applying["numbers"]["predictedBeforeSeconds"]
    path = f"/api/v1/namespaces/{on_server.namespace}/configmaps"
    name = plan_name(base("clicks", on_server.api.get(f"{on_server.path}/clicks")["metadata"]["uid"]))
    config = on_server.api.get(f"{path}/{name}")
    assert in_force(config) == plan
    assert json.loads(config["data"][PLAN_KEY])["hash"] == plan
    assert switches == [{'{outcome="switched"}': 1.0}] * len(pods)
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
