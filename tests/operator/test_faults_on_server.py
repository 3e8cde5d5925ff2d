"""What servers and people do to an operator at the worst time, on a real API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest
from node_agent.agent import NodeAgent
from operator_world.on_server import CRDS, OnServer, install_crd, is_served, script_job
from rap_contract.crd import NAME as CRD_NAME
from rap_operator.api import Api, ApiUnavailable, Object
from rap_operator.controller import Controller
from rap_operator.resources import Resource
from rap_operator.watch import Timing
from servers.waiting import wait_until

pytestmark = pytest.mark.cluster

T = TypeVar("T")
WAIT = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
# Some 20 of a scenario, and five more for each pass that a new operator makes before its lists are in.
MAX_REQUESTS = 60
QUICK: dict[str, Any] = {"restartPolicy": {"delaySeconds": 0, "maxRestarts": 3}}
IMPATIENT = Timing(silence_s=2.0, max_backoff_s=0.5)


def generation_seen(on_server: OnServer) -> int:
    return int(on_server.status().get("observedGeneration", 0))


def accepted(on_server: OnServer) -> str:
    conditions = on_server.status().get("conditions", ())
    return next((str(c["message"]) for c in conditions if c["type"] == "Accepted"), "")


def test_watches_that_hang_half_open_are_given_up_and_taken_up_again(on_server: OnServer) -> None:
    controller = on_server.operate(timing=IMPATIENT)
    on_server.create(script_job(WAIT, suspend=True))
    on_server.wait_phase("Suspended")
    on_server.cluster.apiserver.pause()
    pods = next(r for r in controller.reflectors if r.resource.plural == "pods")
    wait_until(lambda: pods.num_restarts >= 1, limit_s=30, what="the watch of pods to be given up")
    on_server.cluster.apiserver.resume()
    on_server.edit(stallSeconds=61)
    wait_until(lambda: generation_seen(on_server) == 2, limit_s=60, what="the operator to go on")


def test_an_etcd_that_stops_for_a_while_is_waited_for(on_server: OnServer) -> None:
    on_server.operate(timing=IMPATIENT)
    on_server.create(script_job(WAIT, suspend=True))
    on_server.wait_phase("Suspended")
    on_server.cluster.etcd.kill()
    on_server.cluster.etcd.start()
    wait_until(lambda: on_server.api.is_healthy("/readyz"), limit_s=60, what="the API server to recover")
    on_server.edit(stallSeconds=61)
    wait_until(lambda: generation_seen(on_server) == 2, limit_s=60, what="the operator to go on")


@pytest.mark.slow
def test_an_etcd_that_stops_for_twenty_seconds_disturbs_no_running_job(
    on_server: OnServer, node_agent: NodeAgent
) -> None:
    del node_agent
    on_server.operate(timing=IMPATIENT)
    on_server.create(script_job(WAIT, **QUICK))
    on_server.wait_phase("Running")
    before = sorted(pod["metadata"]["uid"] for pod in on_server.pods())
    on_server.cluster.etcd.kill()
    stopped_s = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped_s >= 20, limit_s=60, what="20 s", every_s=1.0)
    on_server.cluster.etcd.start()
    wait_until(lambda: on_server.api.is_healthy("/readyz"), limit_s=60, what="the API server to recover")
    on_server.edit(stallSeconds=61)
    wait_until(lambda: generation_seen(on_server) == 2, limit_s=60, what="the operator to go on")
    assert sorted(pod["metadata"]["uid"] for pod in on_server.pods()) == before
    assert on_server.attempt() == 1


def test_a_crd_removed_and_put_back_is_served_again(on_server: OnServer) -> None:
    on_server.operate(timing=IMPATIENT)
    on_server.create(script_job(WAIT, suspend=True))
    on_server.wait_phase("Suspended")
    on_server.api.delete(f"{CRDS}/{CRD_NAME}")
    wait_until(lambda: not is_served(on_server.api), limit_s=60, what="the kind to be gone")
    install_crd(on_server.cluster)
    on_server.create(script_job(WAIT, suspend=True))
    on_server.wait_phase("Suspended")


def test_a_job_of_a_megabyte_is_refused_with_a_reason_and_harms_nobody(on_server: OnServer) -> None:
    on_server.operate()
    job = script_job(WAIT)
    job["spec"]["columns"] |= {f"column_{i:05}" + "x" * 120: "int32" for i in range(7500)}
    on_server.create(job)
    wait_until(lambda: "bytes as JSON" in accepted(on_server), limit_s=30, what="the reason")
    other = script_job(WAIT, suspend=True)
    other["metadata"]["name"] = "other"
    on_server.create(other)
    on_server.wait_phase("Suspended", name="other")


def test_a_job_of_thousands_of_levels_is_refused_with_a_reason_and_hides_no_other(on_server: OnServer) -> None:
    job = script_job(WAIT)
    innermost: Object = job["spec"]["trainer"]["podTemplate"]
    for _ in range(800):
        innermost["x"] = innermost = {}
    on_server.create(job)
    other = script_job(WAIT, suspend=True)
    other["metadata"]["name"] = "other"
    on_server.create(other)
    on_server.operate()
    on_server.wait_phase("Suspended", name="other")
    wait_until(lambda: "nested deeper than 150 levels" in accepted(on_server), limit_s=30, what="the reason")


def test_a_name_of_253_characters_runs(on_server: OnServer, node_agent: NodeAgent) -> None:
    del node_agent
    on_server.operate()
    job = script_job("exit 0")
    name = job["metadata"]["name"] = ("9odd.name-" * 26)[:252] + "x"
    on_server.create(job)
    on_server.wait_phase("Completed", name=name)


class MortalApi:
    """Passes requests on until one of them, before or after which the operator is dead for good."""

    def __init__(self, api: Api, *, kill_at: int, has_effect: bool) -> None:
        self._api, self._kill_at, self._has_effect = api, kill_at, has_effect
        self._lock = threading.Lock()
        self.num_calls = 0
        self.is_dead = threading.Event()

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        if "limit" in query and query["limit"] != "1":  # a reflector's
            return self._api.list(resource, namespace, query=query)
        return self._passed(lambda: self._api.list(resource, namespace, query=query))

    def watch(self, *args: Any, **kwargs: Any) -> Iterator[Object]:
        return self._api.watch(*args, **kwargs)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self._passed(lambda: self._api.get(resource, namespace, name))

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        return self._passed(lambda: self._api.create(resource, namespace, body))

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        return self._passed(lambda: self._api.patch(resource, namespace, name, body, subresource=subresource))

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        self._passed(lambda: self._api.delete(resource, namespace, name, options))

    def _passed(self, request: Callable[[], T]) -> T:
        with self._lock:
            if self.is_dead.is_set():
                raise ApiUnavailable("dead")
            index, self.num_calls = self.num_calls, self.num_calls + 1
            is_last = index == self._kill_at
            if is_last and not self._has_effect:
                self.is_dead.set()
                raise ApiUnavailable("killed before")
            try:
                return request()
            finally:
                if is_last:
                    self.is_dead.set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", ["create", "restart", "resize", "suspend and resize", "delete"])
def test_a_kill_at_any_request_leaves_one_attempt_and_no_duplicate(
    on_server: OnServer, node_agent: NodeAgent, scenario: str
) -> None:
    for kill_at in range(MAX_REQUESTS):
        for has_effect in (False, True):
            if not _survives(on_server, node_agent, scenario, kill_at=kill_at, has_effect=has_effect):
                return
    raise AssertionError(f"a scenario of at most {MAX_REQUESTS} requests took more")


def _survives(on_server: OnServer, node_agent: NodeAgent, scenario: str, *, kill_at: int, has_effect: bool) -> bool:
    """Runs a scenario with a kill; False when it was over before the kill was due."""
    name = f"job-{kill_at}-{'after' if has_effect else 'before'}"
    job = script_job(WAIT, **QUICK)
    job["metadata"]["name"] = name
    calm = on_server.operate() if scenario != "create" else None
    on_server.create(job)
    if calm is not None:
        on_server.wait_phase("Running", name=name)
        calm.stop()
    mortal = MortalApi(on_server.real_api(), kill_at=kill_at, has_effect=has_effect)
    first = Controller(mortal, namespaces=(on_server.namespace,))
    first.start(workers=1)
    attempt = 1 if scenario in ("create", "delete") else 2
    if scenario == "restart":
        node_agent.kill(on_server.namespace, next(p["metadata"]["name"] for p in on_server.pods()))
    elif scenario == "resize":
        on_server.edit(name, trainer={"nodes": 1})
    elif scenario == "suspend and resize":
        on_server.edit(name, suspend=True, trainer={"nodes": 1})
    elif scenario == "delete":
        on_server.api.delete(f"{on_server.path}/{name}", propagationPolicy="Foreground")

    def is_over() -> bool:
        if mortal.is_dead.is_set():
            return True
        if scenario == "delete":
            return not on_server.children()
        status = on_server.status(name)
        goal = ("Suspended", 1) if scenario == "suspend and resize" else ("Running", attempt)
        return (status.get("phase"), (status.get("attempt") or {}).get("number")) == goal

    wait_until(is_over, limit_s=90, what=f"the kill at request {kill_at}, or the end of {scenario}")
    first.stop()
    second = on_server.operate()
    if scenario == "delete":
        wait_until(lambda: not on_server.children(), limit_s=90, what="everything to be gone")
        second.stop()
        return mortal.is_dead.is_set()
    if scenario == "suspend and resize":
        on_server.wait_phase("Suspended", name=name)
        on_server.edit(name, suspend=False)
    status = on_server.wait_phase("Running", name=name, attempt=attempt)
    assert on_server.pod_attempts() == {str(attempt)}
    assert len(on_server.pods()) == status["attempt"]["nodes"]
    kinds = sorted(child.partition("/")[0] for child in on_server.children())
    budgets = 1 if status["attempt"]["nodes"] > 1 else 0
    assert kinds == ["budgets"] * budgets + ["configmaps"] * 2 + ["jobs"] + ["pods"] * status["attempt"]["nodes"] + [
        "services"
    ]
    second.stop()
    on_server.api.delete(f"{on_server.path}/{name}", propagationPolicy="Foreground")
    wait_until(lambda: not on_server.children(), limit_s=90, what="everything to be gone")
    return mortal.is_dead.is_set()
