"""An operator under the chart's own roles in a namespace of its own, and a story in which it needs all of them.

Pods run on fake nodes. The story stops with Refused as soon as the authoriser has refused anything, which no other part
of it would notice as fast: the operator tries again for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import kubernetes.client
import kubernetes.config
from chart.account import LEASE, Permission, chart_account
from chart.strict_cluster import StrictCluster
from node_agent.fake_nodes import FakeNodes
from operator_world.on_server import OnServer
from operator_world.world import rapjob
from rap_operator import naming
from rap_operator.api import KubernetesApi
from rap_operator.controller import Controller
from rap_operator.lease import Identity, LeaseLock
from rap_operator.policy import Limits
from servers.kube_api import Object
from servers.waiting import wait_until

T = TypeVar("T")
LIMITS = Limits(force_after_s=0.5, stable_after_s=0.0)
FINALIZER = "rap.dev/held-by-a-test"


class Refused(Exception):
    """The authoriser refused the operator something."""


class Story:
    """One namespace, one ServiceAccount with the chart's roles less one permission, one operator, one job."""

    def __init__(self, cluster: StrictCluster, nodes: FakeNodes, *, without: Permission | None) -> None:
        self.nodes = nodes
        self.namespace = cluster.create_namespace("rbac")
        self.seen = OnServer(cluster, self.namespace)
        self.refused: list[tuple[str, str]] = []
        self.used: set[tuple[str, str]] = set()
        self._kubeconfig = chart_account(cluster, self.namespace, without=without)
        self._controller: Controller | None = None

    def run(self) -> None:
        """Everything an operator does for a job; raises Refused at the first refusal."""
        self._leave_children_of_an_operator_that_died()
        self._hold_the_lease()
        self._start()
        self._wait("the children to be adopted", lambda: self._attempt_state() == "Created")
        self._label_children()
        self._leaves_its_queue()
        self._mends_what_others_change()
        self._resizes_past_a_pod_that_will_not_go()
        self._suspends_and_resumes()
        self._ends_and_is_removed()
        self._check()

    def close(self) -> None:
        """Ends the operator and asks for the namespace's removal."""
        if self._controller is not None:
            self._controller.stop(timeout_s=5)
        self.seen.cluster.delete_namespace(self.namespace)

    # --- the operator

    def _own_api(self) -> KubernetesApi:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=configuration)
        configuration.connection_pool_maxsize = 32
        api = KubernetesApi(kubernetes.client.ApiClient(configuration))
        api.calls = self._count
        return api

    def _count(self, verb: str, kind: str, status: int, *rest: object) -> None:
        del rest
        self.used.add((verb, kind))
        if status == 403:
            self.refused.append((verb, kind))

    def _start(self) -> None:
        self._controller = Controller(self._own_api(), namespaces=(self.namespace,), limits=LIMITS)
        self._controller.start(workers=2)

    def _hold_the_lease(self) -> None:
        gone, lock = (self._lock(Identity(name, "a-uid")) for name in ("a-pod-that-is-gone", "the-pod"))
        for attempt in (gone, lock, lock):
            attempt.try_once()
            self._check()
        lock.release()
        self._check()

    def _lock(self, identity: Identity) -> LeaseLock:
        return LeaseLock(self._own_api(), namespace=self.namespace, name=LEASE, identity=identity)

    # --- the story

    def _leave_children_of_an_operator_that_died(self) -> None:
        """All children are there, without the label by which operators find theirs; the status says not yet.

        The Job waits for its queue, so it has no pods: with them it would count as deleted by hand.
        """
        job = rapjob(restartPolicy={"delaySeconds": 0}, ttlSecondsAfterFinished=1)
        job["metadata"]["labels"] = {naming.QUEUE_LABEL: "a-queue"}
        self.seen.create(job)
        before = self.seen.operate(limits=LIMITS)
        self._wait("the first attempt's Job", lambda: self._attempt_state() == "Created")
        before.stop()
        for path in self._child_paths():
            self.seen.api.patch(path, {"metadata": {"labels": {naming.LABEL_MANAGED_BY: None}}})
        attempt = {"state": "Recorded"}
        self.seen.api.patch(f"{self.seen.path}/clicks/status", {"status": {"attempt": attempt}})

    def _label_children(self) -> None:
        for path in self._child_paths():
            self.seen.api.patch(path, {"metadata": {"labels": {naming.LABEL_MANAGED_BY: naming.MANAGER}}})

    def _leaves_its_queue(self) -> None:
        self.seen.api.patch(f"{self.seen.path}/clicks", {"metadata": {"labels": {naming.QUEUE_LABEL: None}}})
        *_, job = self._child_paths()
        self.seen.api.patch(job, {"spec": {"suspend": False}})  # as the queue does
        self._wait("the first attempt to run", lambda: self._phase() == "Running")
        assert self.seen.attempt() == 1

    def _mends_what_others_change(self) -> None:
        service, budget, *_ = paths = self._child_paths()
        config = next(path for path in paths if "-spec-" in path)
        self._mends(service, {"spec": {"publishNotReadyAddresses": False}})
        self._mends(budget, {"spec": {"minAvailable": 0}})
        self._mends(config, {"data": {"job.yaml": "{}"}})
        for path in (service, budget, config):
            self._makes_again(path)

    def _mends(self, path: str, change: Object) -> None:
        api, part = self.seen.api, next(iter(change))
        before = api.get(path)[part]
        api.patch(path, change)
        self._wait(f"{path} to be mended", lambda: api.get(path)[part] == before)

    def _makes_again(self, path: str) -> None:
        uid = self.seen.api.get(path)["metadata"]["uid"]
        self.seen.api.delete(path)

        def is_another() -> bool:
            found = self.seen.api.find(path)
            return found is not None and found["metadata"]["uid"] != uid

        self._wait(f"{path} to be made again", is_another)

    def _resizes_past_a_pod_that_will_not_go(self) -> None:
        pod = self.seen.pods()[0]["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        self.seen.api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
        self.seen.edit(trainer={"nodes": 1})
        self._wait("the pod to be removed by force", lambda: "PodForced" in self.seen.events() or self._deletes_pods())
        found = self.seen.api.find(path)
        others = [f for f in (found or {}).get("metadata", {}).get("finalizers", ()) if f != FINALIZER]
        if found is not None:
            self.seen.api.patch(path, {"metadata": {"finalizers": others}})
        self._wait("one node to run", lambda: self._phase() == "Running" and self.seen.attempt() == 2)
        _, budget, *_ = self._child_paths()
        self._wait("the budget of two nodes to go", lambda: self.seen.api.find(budget) is None)
        self._wait("the old spec to go", lambda: sum("-spec-" in path for path in self._child_paths()) == 1)

    def _suspends_and_resumes(self) -> None:
        self.seen.edit(suspend=True)
        self._wait("the suspension", lambda: self._phase() == "Suspended")
        self.seen.edit(suspend=False)
        self._wait("the resumption", lambda: self._phase() == "Running")

    def _ends_and_is_removed(self) -> None:
        assert {"AttemptRecorded", "Running", "AttemptEnded"} <= set(self.seen.events())
        for pod in self.seen.pods():
            self.nodes.end(self.namespace, pod["metadata"]["name"])
        self._wait("the job to be removed", lambda: self.seen.api.find(f"{self.seen.path}/clicks") is None)

    # --- looking

    def _check(self) -> None:
        if self.refused:
            raise Refused(f"{self.refused[0][0]} of {self.refused[0][1]}")

    def _wait(self, what: str, condition: Callable[[], T]) -> None:
        def checked() -> T:
            self._check()
            return condition()

        try:
            wait_until(checked, limit_s=90, what=what, every_s=0.1)
        except TimeoutError as late:
            raise TimeoutError(f"{late}; pods: {self.seen.pods()}; status: {self.seen.status()}") from None

    def _child_paths(self) -> list[str]:
        """Service, budget, ConfigMaps and Jobs of the job, in this order."""
        uid = self.seen.api.get(f"{self.seen.path}/clicks")["metadata"]["uid"]
        base, place = naming.base("clicks", uid), f"namespaces/{self.namespace}"
        maps = self.seen.api.items(f"/api/v1/{place}/configmaps", labelSelector=f"{naming.LABEL_JOB_UID}={uid}")
        jobs = self.seen.api.items(f"/apis/batch/v1/{place}/jobs", labelSelector=f"{naming.LABEL_JOB_UID}={uid}")
        return [
            f"/api/v1/{place}/services/{base}",
            f"/apis/policy/v1/{place}/poddisruptionbudgets/{base}",
            *(f"/api/v1/{place}/configmaps/{item['metadata']['name']}" for item in maps),
            *(f"/apis/batch/v1/{place}/jobs/{item['metadata']['name']}" for item in jobs),
        ]

    def _attempt_state(self) -> str:
        return str((self.seen.status().get("attempt") or {}).get("state", ""))

    def _phase(self) -> str:
        return str(self.seen.status().get("phase", ""))

    def _deletes_pods(self) -> bool:
        return ("delete", "Pod") in self.used
