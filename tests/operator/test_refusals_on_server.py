"""What webhooks, quotas, people and rivals do to a job on a real API server, and what is said of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_agent.agent import NodeAgent
from operator_world.on_server import OnServer, script_job
from operator_world.webhook import MESSAGE, RefusingWebhook
from operator_world.world import rapjob
from servers.kube_api import Object
from servers.waiting import wait_until

pytestmark = pytest.mark.cluster

WAIT = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
QUICK: dict[str, Any] = {"restartPolicy": {"delaySeconds": 0, "maxRestarts": 3}}
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture
def webhook(on_server: OnServer) -> Iterator[RefusingWebhook]:
    made = RefusingWebhook(on_server.cluster.authority)
    yield made
    made.close()


def condition(on_server: OnServer, kind: str) -> tuple[str, str]:
    """Reason and message of a condition."""
    found: Object = next((c for c in on_server.status().get("conditions", ()) if c["type"] == kind), {})
    return found.get("reason", ""), found.get("message", "")


@pytest.mark.parametrize(
    ("group", "plural", "reason", "said"),
    [("batch", "jobs", "Refused", MESSAGE), ("", "pods", "NoPods", "the events of Job")],
    ids=["jobs", "pods"],
)
def test_a_webhook_that_refuses_is_said_and_waited_for(
    on_server: OnServer, webhook: RefusingWebhook, group: str, plural: str, reason: str, said: str
) -> None:
    name = f"refusing-{on_server.namespace}"
    on_server.api.create(WEBHOOKS, webhook.configuration(name, on_server.namespace, group=group, plural=plural))
    try:
        on_server.operate()
        on_server.create(script_job(WAIT, trainer={"nodes": 1}))
        wait_until(lambda: condition(on_server, "Scheduled")[0] == reason, limit_s=60, what=f"the reason {reason}")
        assert said in condition(on_server, "Scheduled")[1]
    finally:
        on_server.api.delete(f"{WEBHOOKS}/{name}")
    wait_until(lambda: on_server.pods(), limit_s=120, what="a pod, once the webhook is gone")
    assert on_server.attempt() == 1


def test_a_quota_on_jobs_is_said_with_the_servers_words_and_waited_for(on_server: OnServer) -> None:
    quotas = f"/api/v1/namespaces/{on_server.namespace}/resourcequotas"
    on_server.api.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}})
    wait_until(lambda: on_server.api.get(f"{quotas}/none").get("status", {}).get("used"), limit_s=60, what="the quota")
    on_server.operate()
    on_server.create(script_job(WAIT, trainer={"nodes": 1}))
    wait_until(lambda: condition(on_server, "Scheduled")[0] == "Refused", limit_s=60, what="the reason Refused")
    assert "exceeded quota" in condition(on_server, "Scheduled")[1]
    on_server.api.delete(f"{quotas}/none")
    wait_until(lambda: on_server.pods(), limit_s=120, what="a pod, once the quota is gone")
    assert on_server.attempt() == 1


def test_pods_pass_the_restricted_security_standard_as_they_are(on_server: OnServer) -> None:
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    on_server.api.patch(f"/api/v1/namespaces/{on_server.namespace}", enforce)
    on_server.operate()
    job = rapjob(trainer={"nodes": 1, "gpusPerNode": 1})
    on_server.create(job)
    wait_until(lambda: on_server.pods(), limit_s=60, what="a pod that the standard lets through")


def test_a_running_jobs_size_edited_by_hand_starts_a_new_attempt(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    on_server.create(script_job(WAIT, **QUICK))
    on_server.wait_phase("Running")
    jobs = f"/apis/batch/v1/namespaces/{on_server.namespace}/jobs"
    (job,) = on_server.api.items(jobs)
    edit = {"spec": {"parallelism": 3, "completions": 3}}  # as the API allows for an Indexed Job
    on_server.api.patch(f"{jobs}/{job['metadata']['name']}", edit)
    status = on_server.wait_phase("Running", attempt=2, limit_s=120)
    assert status["history"][0]["endReason"] == "JobEdited"
    assert (status["ready"], on_server.pod_attempts()) == ("2/2", {"2"})


def test_an_operator_of_some_namespaces_leaves_the_others_alone(on_server: OnServer) -> None:
    other = OnServer(on_server.cluster, on_server.cluster.create_namespace())
    try:
        on_server.operate()
        other.create(script_job(WAIT, suspend=True))
        on_server.create(script_job(WAIT, suspend=True))
        on_server.wait_phase("Suspended")
        assert other.status() == {}
        other.operate()
        other.wait_phase("Suspended")
    finally:
        other.close()
        other.cluster.delete_namespace(other.namespace)


def test_an_api_server_that_answers_slowly_costs_time_and_nothing_else(on_server: OnServer) -> None:
    is_over = threading.Event()
    server = on_server.cluster.apiserver

    def stutter() -> None:
        while not is_over.wait(0.1):
            server.pause()
            is_over.wait(0.4)
            server.resume()

    on_server.operate()
    thread = threading.Thread(target=stutter)
    thread.start()
    try:
        on_server.create(script_job(WAIT, trainer={"nodes": 1}))
        wait_until(lambda: on_server.pods(), limit_s=120, what="a pod")
        on_server.edit(suspend=True)
        on_server.wait_phase("Suspended", limit_s=120)
    finally:
        is_over.set()
        thread.join()
    assert (on_server.pods(), on_server.attempt()) == ([], 1)


@pytest.mark.timeout(180)
def test_a_leader_frozen_beyond_its_lease_writes_nothing_when_it_wakes_and_ends(
    on_server: OnServer, tmp_path: Path
) -> None:
    arguments = ("--lease-namespace", on_server.namespace)
    first = on_server.operator_process(*arguments, "--identity", "one", log=tmp_path / "one")
    on_server.create(script_job(WAIT, suspend=True))
    on_server.wait_phase("Suspended")
    first.send_signal(signal.SIGSTOP)
    on_server.operator_process(*arguments, "--identity", "two", log=tmp_path / "two")
    wait_until(lambda: "leading as two" in (tmp_path / "two").read_text(), limit_s=90, what="two to lead")
    on_server.edit(stallSeconds=61)
    wait_until(lambda: on_server.status().get("observedGeneration") == 2, limit_s=60, what="two to act")
    version = on_server.api.get(f"{on_server.path}/clicks")["metadata"]["resourceVersion"]
    first.send_signal(signal.SIGCONT)
    assert first.wait(30) == 1
    assert "the lease is lost" in (tmp_path / "one").read_text()
    assert on_server.api.get(f"{on_server.path}/clicks")["metadata"]["resourceVersion"] == version
