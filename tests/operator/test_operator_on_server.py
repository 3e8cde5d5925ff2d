"""The operator on a real API server, its pods run by the node agent: what only real controllers can show."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from node_agent.agent import NodeAgent
from operator_world.on_server import OnServer, port_of, read_page, script_job
from rap_operator.policy import Limits
from servers.waiting import wait_until

pytestmark = pytest.mark.cluster

WAIT = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
QUICK = {"restartPolicy": {"delaySeconds": 0, "maxRestarts": 3}}


def pod_name(on_server: OnServer, index: int) -> str:
    key = "batch.kubernetes.io/job-completion-index"
    return next(
        str(pod["metadata"]["name"]) for pod in on_server.pods() if pod["metadata"]["labels"][key] == str(index)
    )


def watch_overlap(on_server: OnServer, done: Callable[[], object]) -> None:
    """Waits for `done`, and fails if pods of two attempts are ever there together."""

    def both() -> object:
        attempts = on_server.pod_attempts()
        assert len(attempts) <= 1, f"pods of attempts {attempts} at a time"
        return done()

    wait_until(both, limit_s=90, what="the next attempt, alone")


def test_a_job_runs_fails_suspends_and_resizes(on_server: OnServer, node_agent: NodeAgent) -> None:
    on_server.operate()
    on_server.create(script_job(WAIT, **QUICK))
    status = on_server.wait_phase("Running")
    assert (status["ready"], status["attempt"]["number"]) == ("2/2", 1)

    died_s = time.monotonic()
    node_agent.kill(on_server.namespace, pod_name(on_server, 1))
    watch_overlap(on_server, lambda: on_server.attempt() == 2)
    assert time.monotonic() - died_s < 30  # the pod's grace and the machine's load are in it; benchmarks measure
    status = on_server.wait_phase("Running", attempt=2)
    assert status["restarts"]["failures"] == 1
    assert status["history"][0]["exitCode"] == 137

    on_server.edit(suspend=True)
    on_server.wait_phase("Suspended")
    assert on_server.pods() == []
    on_server.edit(suspend=False, trainer={"nodes": 3})
    status = on_server.wait_phase("Running", attempt=3)
    assert status["ready"] == "3/3"
    assert status["restarts"]["failures"] == 1
    assert on_server.events()[:3] == ["AttemptRecorded", "Running", "AttemptEnded"]


def test_a_job_whose_pods_end_well_is_complete(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    on_server.create(script_job("exit 0"))
    on_server.wait_phase("Completed")


def test_a_ranks_last_words_decide_and_the_job_fails(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    said = json.dumps({"exitCode": 3, "message": "12 of 100 rows are bad"})
    on_server.create(script_job(f"echo '{said}' > /dev/termination-log; exit 1"))
    status = on_server.wait_phase("Failed")
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "DataBudgetExceeded"
    assert "12 of 100 rows are bad" in failed["message"]


def test_an_eviction_is_a_disruption(on_server: OnServer, node_agent: NodeAgent) -> None:
    on_server.operate()
    on_server.create(script_job(WAIT, **QUICK))
    on_server.wait_phase("Running")
    node_agent.evict(on_server.namespace, pod_name(on_server, 0))
    watch_overlap(on_server, lambda: on_server.attempt() == 2)
    status = on_server.wait_phase("Running", attempt=2)
    assert status["restarts"]["failures"] == 0
    assert status["history"][0]["endClass"] == "Disruption"


def test_a_lost_node_is_a_disruption_and_its_pods_are_forced(on_server: OnServer, node_agent: NodeAgent) -> None:
    on_server.operate(limits=Limits(force_after_s=1.0))
    job = script_job(WAIT, **QUICK)
    job["spec"]["trainer"]["podTemplate"]["spec"]["tolerations"] = []  # the cluster's own: out of a lost node in 3 s
    on_server.create(job)
    on_server.wait_phase("Running")
    lost = next(p["spec"]["nodeName"] for p in on_server.pods())
    node_agent.lose_node(lost)
    watch_overlap(on_server, lambda: on_server.attempt() == 2)
    status = on_server.wait_phase("Running", attempt=2)
    assert status["restarts"]["failures"] == 0
    assert status["history"][0]["endClass"] == "Disruption"
    assert all(pod["spec"]["nodeName"] != lost for pod in on_server.pods())
    assert "PodForced" in on_server.events()


def test_an_api_server_that_restarts_disturbs_nothing(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    on_server.create(script_job(WAIT, **QUICK))
    on_server.wait_phase("Running")
    before = sorted(pod["metadata"]["uid"] for pod in on_server.pods())
    on_server.cluster.apiserver.kill()
    on_server.cluster.apiserver.start()
    on_server.edit(stallSeconds=61)
    wait_until(lambda: on_server.status().get("observedGeneration") == 2, limit_s=60, what="the operator to go on")
    assert sorted(pod["metadata"]["uid"] for pod in on_server.pods()) == before
    assert on_server.attempt() == 1


def test_an_operator_killed_and_started_again_leaves_the_job_alone(
    on_server: OnServer, node_agent: NodeAgent, tmp_path: Path
) -> None:
    del node_agent
    arguments = ("--lease-namespace", on_server.namespace, "--identity", "the-pod")
    process = on_server.operator_process(*arguments, log=tmp_path / "first")
    on_server.create(script_job(WAIT, **QUICK))
    on_server.wait_phase("Running")
    before = sorted(pod["metadata"]["uid"] for pod in on_server.pods())
    on_server.kill(process)
    on_server.edit(stallSeconds=61)
    on_server.operator_process(*arguments, log=tmp_path / "second")
    wait_until(lambda: on_server.status().get("observedGeneration") == 2, limit_s=60, what="the operator to go on")
    assert sorted(pod["metadata"]["uid"] for pod in on_server.pods()) == before
    port = port_of(tmp_path / "second")
    assert read_page(port, "/healthz") == read_page(port, "/readyz") == "ok\n"
    page = read_page(port, "/metrics")
    assert 'rap_operator_jobs{phase="Running"} 1.0' in page
    assert "rap_operator_leader 1.0" in page
    lines = [json.loads(line) for line in (tmp_path / "first").read_text().splitlines()]
    assert {"job": f"{on_server.namespace}/clicks", "attempt": 1}.items() <= next(
        line.items() for line in lines if "starting attempt" in line["message"]
    )


def test_of_two_operators_one_leads_and_the_other_takes_over(on_server: OnServer, tmp_path: Path) -> None:
    arguments = ("--lease-namespace", on_server.namespace)
    first = on_server.operator_process(*arguments, "--identity", "one", log=tmp_path / "one")
    port_of(tmp_path / "one")
    wait_until(lambda: "leading as one" in (tmp_path / "one").read_text(), limit_s=30, what="one to lead")
    on_server.operator_process(*arguments, "--identity", "two", log=tmp_path / "two")
    port = port_of(tmp_path / "two")
    assert read_page(port, "/readyz") == "ok\n"  # ready without leading
    assert "rap_operator_leader 0.0" in read_page(port, "/metrics")
    first.terminate()
    assert first.wait(20) == 0
    wait_until(lambda: "leading as two" in (tmp_path / "two").read_text(), limit_s=30, what="two to lead")


def test_an_operator_whose_pod_is_gone_is_not_waited_for(on_server: OnServer, tmp_path: Path) -> None:
    path = f"/api/v1/namespaces/{on_server.namespace}/pods"
    spec = {"schedulerName": "nobody", "containers": [{"name": "operator", "image": "operator"}]}
    one, two = (on_server.api.create(path, {"metadata": {"name": name}, "spec": spec}) for name in ("one", "two"))
    arguments = ("--lease-namespace", on_server.namespace)
    first = on_server.operator_process(*arguments, log=tmp_path / "one", pod=one)
    wait_until(lambda: "leading as one" in (tmp_path / "one").read_text(), limit_s=60, what="one to lead")
    on_server.kill(first)
    on_server.api.delete(f"{path}/one")
    on_server.operator_process(*arguments, log=tmp_path / "two", pod=two)
    wait_until(lambda: "leading as two" in (tmp_path / "two").read_text(), limit_s=60, what="two to lead")
    assert "pod one held the lease and is gone" in (tmp_path / "two").read_text()


def test_a_quota_that_forbids_pods_is_said_and_waited_for(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    quotas = f"/api/v1/namespaces/{on_server.namespace}/resourcequotas"
    on_server.api.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    on_server.operate()
    on_server.create(script_job(WAIT, **QUICK))

    def reason() -> str:
        return next(
            (str(c["reason"]) for c in on_server.status().get("conditions", ()) if c["type"] == "Scheduled"), ""
        )

    wait_until(lambda: reason() == "NoPods", limit_s=30, what="the reason NoPods")
    assert on_server.attempt() == 1
    on_server.api.delete(f"{quotas}/none")
    on_server.wait_phase("Running", attempt=1, limit_s=120)


def test_a_pod_template_the_server_refuses_is_said_in_an_event(on_server: OnServer) -> None:
    on_server.operate()
    job = script_job(WAIT)
    job["spec"]["trainer"]["podTemplate"]["spec"]["containers"][0]["image"] = ""
    job["spec"]["trainer"]["podTemplate"]["spec"]["restartPolicy"] = "Sometimes"
    on_server.create(job)
    wait_until(lambda: "Refused" in on_server.events(), limit_s=30, what="an event that says why")


# Last in the file: the garbage collector learns of a new kind only every 30 s.
def test_a_deleted_job_and_a_deleted_namespace_leave_nothing(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    on_server.create(script_job(WAIT))
    on_server.wait_phase("Running")
    on_server.cluster.kubectl("delete", "rj", "clicks", "-n", on_server.namespace, "--wait=false")
    wait_until(lambda: not on_server.children(), limit_s=60, what="everything to be gone")
    on_server.create(script_job(WAIT))
    on_server.wait_phase("Running")
    on_server.cluster.delete_namespace(on_server.namespace)
    path = f"/api/v1/namespaces/{on_server.namespace}"
    wait_until(lambda: on_server.api.find(path) is None, limit_s=60, what="the namespace to be gone")
