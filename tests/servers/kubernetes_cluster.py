"""A Kubernetes control plane for tests: etcd, API server, controller manager and scheduler as local processes.

There is no kubelet in it: nodes and the pods on them are the node agent's business
(tests/node_agent). Each server can be stopped, killed, paused and restarted by itself.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from servers import build
from servers.certificates import CertificateAuthority, KeyPair, signing_key
from servers.kube_api import KubeApi
from servers.processes import ServerProcess, free_port
from servers.waiting import wait_until

SERVICE_RANGE = "10.0.0.0/24"
# Pods leave a node this long after it is found lost: not the default of 300 s, but longer than a node needs to
# report again after an outage of the API server, which must not evict anything.
EVICT_AFTER_S = 5
# A node is lost when its lease is this old. The agent renews every 2 s; the rest is for a busy machine.
NODE_GRACE_S = 12
# Open watches hold the API server and etcd back for a minute when they are asked to end.
STOP_LIMIT_S = 3.0
CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "job-controller",
    "ttl-after-finished-controller",
    "pod-garbage-collector-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "disruption-controller",
    "endpointslice-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "resourcequota-controller",
    "persistentvolume-binder-controller",
    "replicaset-controller",
    "deployment-controller",
    "clusterrole-aggregation-controller",
)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the servers listen."""

    etcd_client: int = field(default_factory=free_port)
    etcd_peer: int = field(default_factory=free_port)
    apiserver: int = field(default_factory=free_port)
    controller_manager: int = field(default_factory=free_port)
    scheduler: int = field(default_factory=free_port)


class KubernetesCluster:
    """One control plane with its certificates, its data and its logs in `folder`."""

    def __init__(self, folder: Path, *, line: str | None = None) -> None:
        self.folder = folder
        self.binaries = build.kubernetes(line or build.kubernetes_line())
        self.ports = Ports()
        self.server = f"https://127.0.0.1:{self.ports.apiserver}"
        self.authority = CertificateAuthority(folder / "pki")
        self._service_accounts = signing_key(folder / "pki", "service-accounts")
        self.kubeconfig = self.kubeconfig_for_user("admin", groups=("system:masters",))
        self.api = self.api_for(self.kubeconfig)
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.controller_manager = self._controller_manager()
        self.scheduler = self._scheduler()

    @property
    def servers(self) -> list[ServerProcess]:
        """All servers, in the order they start."""
        return [self.etcd, self.apiserver, self.controller_manager, self.scheduler]

    def start(self) -> None:
        """Start all servers and wait until each is healthy."""
        self.etcd.start()
        self.apiserver.start()
        self.controller_manager.start(wait=False)
        self.scheduler.start(wait=False)
        self.controller_manager.wait_healthy()
        self.scheduler.wait_healthy()

    def stop(self) -> None:
        """Kill all servers, the last started first: their data is thrown away anyway."""
        for server in reversed(self.servers):
            server.kill()

    def recover(self) -> None:
        """Undo what a test may have left: every server runs and none still waits for another.

        Controllers that lost the API server back off for up to half a minute; a new one is up at once.
        """
        for server in self.servers:
            server.recover()
        for server in (self.controller_manager, self.scheduler):
            if server.started_at_s < max(self.apiserver.started_at_s, self.etcd.started_at_s):
                server.restart()

    def create_namespace(self, prefix: str = "test") -> str:
        """Create a namespace of a new name in which pods can be created; return the name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.api.find(account), limit_s=60, what=f"the default service account of {name}")
        return name

    def delete_namespace(self, name: str) -> None:
        """Ask for deletion; the namespace controller empties it in the background."""
        if self.api.find(f"/api/v1/namespaces/{name}"):
            self.api.delete(f"/api/v1/namespaces/{name}")

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as admin and return what it prints; `check` raises with its complaint."""
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        answer = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        if check and answer.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {answer.stderr.strip()}")
        return answer.stdout + ("" if check else answer.stderr)

    def kubeconfig_for_user(self, user: str, *, groups: tuple[str, ...] = ()) -> Path:
        """Write a kubeconfig of a user with a client certificate."""
        stem = f"user-{user.replace(':', '-')}"
        pair = self.authority.issue(stem, user=user, groups=groups, hosts=())
        return self._write_kubeconfig(stem, {"client-certificate": str(pair.certificate), "client-key": str(pair.key)})

    def kubeconfig_for_service_account(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig of a ServiceAccount that exists, with a token valid for a day."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = self.api.create(path, {"spec": {"expirationSeconds": 86400}})
        return self._write_kubeconfig(f"serviceaccount-{namespace}-{name}", {"token": answer["status"]["token"]})

    def api_for(self, kubeconfig: Path) -> KubeApi:
        """Return a client that acts as the user of a kubeconfig written by this object."""
        user = json.loads(kubeconfig.read_text())["users"][0]["user"]
        return KubeApi(
            self.server,
            ca_file=self.authority.certificate,
            certificate=Path(user["client-certificate"]) if "client-certificate" in user else None,
            key=Path(user["client-key"]) if "client-key" in user else None,
            token=user.get("token"),
        )

    def _write_kubeconfig(self, stem: str, user: dict[str, str]) -> Path:
        path = self.folder / f"{stem}.kubeconfig"
        cluster = {"server": self.server, "certificate-authority": str(self.authority.certificate)}
        content = {  # JSON is YAML, so every reader of kubeconfig files takes it
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": stem, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": stem}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(content, indent=2))
        path.chmod(0o600)
        return path

    def _etcd(self) -> ServerProcess:
        client = f"http://127.0.0.1:{self.ports.etcd_client}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        return self._process(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync=true",
            "--log-level=warn",
            health=f"{client}/health",
        )

    def _apiserver(self) -> ServerProcess:
        serving = self.authority.issue(
            "apiserver", user="kube-apiserver", hosts=("localhost", "127.0.0.1", "10.0.0.1", "kubernetes.default.svc")
        )
        kubelet_client = self.authority.issue("kubelet-client", user="kube-apiserver", hosts=())
        return self._process(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd_client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.apiserver}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.certificate}",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            *_token_flags(self.server, self._service_accounts),
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--default-not-ready-toleration-seconds={EVICT_AFTER_S}",
            f"--default-unreachable-toleration-seconds={EVICT_AFTER_S}",
            health=None,
        )

    def _controller_manager(self) -> ServerProcess:
        port = self.ports.controller_manager
        return self._process(
            "kube-controller-manager",
            *self._component_flags("kube-controller-manager", port),
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self._service_accounts.key}",
            "--use-service-account-credentials=false",
            f"--controllers={','.join(CONTROLLERS)}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_GRACE_S}s",
            f"--node-startup-grace-period={NODE_GRACE_S}s",
            health=f"https://127.0.0.1:{port}/healthz",
        )

    def _scheduler(self) -> ServerProcess:
        port = self.ports.scheduler
        return self._process(
            "kube-scheduler",
            *self._component_flags("kube-scheduler", port),
            health=f"https://127.0.0.1:{port}/healthz",
        )

    def _component_flags(self, name: str, port: int) -> list[str]:
        serving = self.authority.issue(name, user=name)
        kubeconfig = self.kubeconfig_for_user(f"system:{name}", groups=("system:masters",))
        return [
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _process(self, name: str, *flags: str, health: str | None) -> ServerProcess:
        anonymous = KubeApi(health.rpartition("/")[0] if health else "", ca_file=self.authority.certificate)
        path = f"/{health.rpartition('/')[2]}" if health else "/readyz"
        probe = anonymous if health else self.api
        return ServerProcess(
            name,
            [str(self.binaries / name), *flags],
            log_path=self.folder / f"{name}.log",
            is_healthy=lambda: probe.is_healthy(path),
            stop_limit_s=STOP_LIMIT_S,
        )


def _token_flags(issuer: str, keys: KeyPair) -> list[str]:
    return [
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={keys.certificate}",
        f"--service-account-signing-key-file={keys.key}",
        f"--api-audiences={issuer}",
    ]
