"""RAPJobs and operators on a real API server: what a test does and sees there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
from operator_world.world import rapjob
from rap_contract.crd import NAME as CRD_NAME
from rap_contract.crd import definition
from rap_operator.api import KubernetesApi
from rap_operator.controller import Controller
from rap_operator.naming import LABEL_ATTEMPT
from servers.kube_api import KubeApi, KubeError, Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROOT = Path(__file__).resolve().parents[2]


def install_crd(cluster: KubernetesCluster) -> None:
    """Applies the CRD and waits until it is served."""
    cluster.api.apply(f"{CRDS}/{CRD_NAME}", definition())
    wait_until(lambda: is_served(cluster.api), limit_s=30, what="the CRD to be served")


def is_served(api: KubeApi) -> bool:
    """Whether the API server answers for RAPJobs."""
    try:
        return api.find("/apis/rap.dev/v1alpha1/rapjobs") is not None
    except KubeError as refused:
        if refused.status != 429:  # the storage of a new kind is being made
            raise
        return False


def script_job(script: str, **spec: Any) -> Object:
    """A RAPJob whose pods run a shell script in place of the trainer."""
    job = rapjob(**spec)
    container = {"name": "trainer", "command": ["sh", "-c", script]}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 2, "securityContext": {"runAsNonRoot": False}}
    job["spec"]["trainer"] = {**job["spec"]["trainer"], "podTemplate": {"spec": pod}}
    return job


class OnServer:
    """One namespace of a cluster, and the operators a test runs for it."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, *, kubeconfig: Path | None = None) -> None:
        """`kubeconfig`: whom the operators act as; the admin unless it says another."""
        self.cluster, self.namespace, self.api = cluster, namespace, cluster.api
        self._kubeconfig = kubeconfig or cluster.kubeconfig
        self.path = f"/apis/rap.dev/v1alpha1/namespaces/{namespace}/rapjobs"
        self._controllers: list[Controller] = []
        self._processes: list[subprocess.Popen[str]] = []

    def close(self) -> None:
        """Ends all operators."""
        for controller in self._controllers:
            controller.stop(timeout_s=5)
        for process in self._processes:
            process.kill()
            process.wait()

    # --- operators

    def operate(self, **options: Any) -> Controller:
        """Starts an operator in this process."""
        controller = Controller(self.real_api(), namespaces=(self.namespace,), **options)
        controller.start(workers=2)
        self._controllers.append(controller)
        return controller

    def real_api(self) -> KubernetesApi:
        """The operator's own client, as the user the operators act as."""
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=configuration)
        configuration.connection_pool_maxsize = 32
        return KubernetesApi(kubernetes.client.ApiClient(configuration))

    def operator_process(self, *arguments: str, log: Path, pod: Object | None = None) -> subprocess.Popen[str]:
        """Starts the `rap-operator` command, as in a pod of this namespace where one is given."""
        command = [
            *(sys.executable, "-m", "rap_operator", "--namespaces", self.namespace, "--metrics-port", "0"),
            *("--kubeconfig", str(self._kubeconfig), *arguments),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
        if pod is not None:
            names = {"NAME": pod["metadata"]["name"], "NAMESPACE": self.namespace, "UID": pod["metadata"]["uid"]}
            environment |= {f"POD_{name}": value for name, value in names.items()}
        with log.open("a") as output:
            process = subprocess.Popen(command, stderr=output, stdout=output, env=environment, text=True)
        self._processes.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """kill -9."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    # --- jobs

    def create(self, job: Object) -> Object:
        """Creates a RAPJob here."""
        job["metadata"]["namespace"] = self.namespace
        return self.api.create(self.path, job)

    def edit(self, name: str = "clicks", **spec: Any) -> Object:
        """Changes parts of a RAPJob's spec."""
        return self.api.patch(f"{self.path}/{name}", {"spec": spec})

    def status(self, name: str = "clicks") -> Object:
        """A RAPJob's status."""
        status: Object = self.api.get(f"{self.path}/{name}").get("status") or {}
        return status

    def attempt(self, name: str = "clicks") -> int:
        """Number of a RAPJob's attempt."""
        return int((self.status(name).get("attempt") or {}).get("number", 0))

    def wait_phase(self, phase: str, *, name: str = "clicks", attempt: int = 0, limit_s: float = 60) -> Object:
        """Waits until a RAPJob is in a phase, in a given attempt if one is."""

        def reached() -> Object | None:
            status = self.status(name)
            is_there = status.get("phase") == phase and attempt in (0, (status.get("attempt") or {}).get("number"))
            return status if is_there else None

        try:
            found = wait_until(reached, limit_s=limit_s, what=f"{name} to be {phase}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; its status: {json.dumps(self.status(name))}") from None
        assert found is not None
        return found

    def pods(self) -> list[Object]:
        """All pods here."""
        return self.api.items(f"/api/v1/namespaces/{self.namespace}/pods")

    def pod_attempts(self) -> set[str]:
        """Attempts that have pods."""
        return {pod["metadata"]["labels"].get(LABEL_ATTEMPT, "") for pod in self.pods()}

    def children(self) -> list[str]:
        """Everything the operator makes, as kind/name."""
        found = []
        for path in ("/api/v1/{}/pods", "/api/v1/{}/services", "/api/v1/{}/configmaps", "/apis/batch/v1/{}/jobs"):
            kind = path.rpartition("/")[2]
            found += [
                f"{kind}/{item['metadata']['name']}"
                for item in self.api.items(path.format(f"namespaces/{self.namespace}"))
                if item["metadata"]["name"] != "kube-root-ca.crt"
            ]
        budgets = self.api.items(f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets")
        return found + [f"budgets/{item['metadata']['name']}" for item in budgets]

    def events(self) -> list[str]:
        """Reasons of the events about RAPJobs, in order."""
        items = self.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        mine = [item for item in items if item["involvedObject"].get("kind") == "RAPJob"]
        return [item["reason"] for item in sorted(mine, key=lambda i: int(i["metadata"]["resourceVersion"]))]


def read_page(port: int, path: str) -> str:
    """A page of the operator's health server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def port_of(log: Path) -> int:
    """The port an operator process says it serves on."""

    def found() -> int:
        for line in log.read_text().splitlines():
            if "health and metrics on port" in line:
                return int(json.loads(line)["message"].rpartition(" ")[2])
        return 0

    return wait_until(found, limit_s=30, what="the operator's port in its log")
