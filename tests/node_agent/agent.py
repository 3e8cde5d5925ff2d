"""A process node agent: Nodes in the API whose pods run as local processes, and ways to break them.

It stands where kubelets stand and knows only pods: nothing in it knows what they run. Pods of nodes
that are not its own, and everything else in the cluster, are left alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from node_agent.container_spec import PodContext, log_path
from node_agent.environment import Kind, ReferenceMissing
from node_agent.hosts import hosts_file
from node_agent.images import Image, this_python
from node_agent.log_server import LogServer
from node_agent.network import PodNetwork
from node_agent.nodes import Heartbeats, NodeSpec
from node_agent.pod_runner import PodRunner
from node_agent.watched import WatchedObjects
from servers.kube_api import KubeApi, KubeError, Object
from servers.waiting import wait_until

log = logging.getLogger(__name__)

MEMORY_PREFIX = "/dev/shm/pods-"  # followed by the agent's process id


class NodeAgent:
    """Some nodes of one cluster. `start` and `stop` it; the other methods are faults to inject."""

    def __init__(
        self,
        api: KubeApi,
        folder: Path,
        *,
        nodes: Sequence[NodeSpec],
        images: Mapping[str, Image] | None = None,
        host_ports: Sequence[int] = (),
    ) -> None:
        self.node_names = [node.name for node in nodes]
        self._api = api
        self._folder = folder
        self._memory_folder = Path(f"{MEMORY_PREFIX}{os.getpid()}")
        self._is_stopped = False
        self._images = images if images is not None else {"*": this_python()}
        self._network = PodNetwork([int(api.server.rpartition(":")[2]), *host_ports])
        self._runners: dict[str, PodRunner] = {}
        self._lock = threading.RLock()
        self._start_delay_s: dict[str, float] = {}
        self._logs = LogServer(folder / "kubelet", self._find_log)
        self._heartbeats = Heartbeats(api, nodes, log_port=self._logs.port)
        self._config: dict[Kind, WatchedObjects] = {
            "configmaps": WatchedObjects(api, "/api/v1/configmaps", self._on_reference),
            "secrets": WatchedObjects(api, "/api/v1/secrets", self._on_reference),
        }
        self._services = WatchedObjects(api, "/api/v1/services", self._on_reference)
        self._pods = WatchedObjects(api, "/api/v1/pods", self._on_pod)

    def start(self) -> None:
        """Register the nodes, begin to run what is bound to them, wait until the scheduler may use them."""
        for stale in Path("/").glob(f"{MEMORY_PREFIX[1:]}*"):  # what killed agents have left behind
            if not Path(f"/proc/{stale.name.rpartition('-')[2]}").exists():
                shutil.rmtree(stale, ignore_errors=True)
        self._network.start()
        self._logs.start()
        self._heartbeats.start()
        for watched in [*self._config.values(), self._services, self._pods]:
            watched.start()
        for name in self.node_names:
            wait_until(partial(self._is_usable, name), limit_s=60, what=f"node {name} to be usable")

    def stop(self) -> None:
        """Kill all pods and take the nodes out of the API; pods that are left become orphans there."""
        for watched in [*self._config.values(), self._services, self._pods]:
            watched.stop()
        with self._lock:
            self._is_stopped = True
        self._end_runners(self.node_names)
        self._heartbeats.stop()
        self._logs.stop()
        self._network.stop()
        with suppress(OSError):
            self._memory_folder.rmdir()  # unless another agent of this process still uses it

    # What a person could look at.

    def log(self, namespace: str, pod: str, container: str | None = None) -> str:
        """Return the output of a container's last run, also after its pod is gone."""
        folders = sorted((self._folder / "pods").glob(f"{namespace}_{pod}_*"), key=lambda path: path.stat().st_mtime)
        pattern = f"logs/{container or '*'}/*.log"
        files = [path for folder in folders for path in sorted(folder.glob(pattern), key=lambda p: int(p.stem))]
        return files[-1].read_text(errors="replace") if files else ""

    def pid(self, namespace: str, pod: str, container: str | None = None) -> int | None:
        """Process id of a container's process 1, None when it does not run."""
        runner = self._runner(namespace, pod)
        return runner.containers.pid(container or runner.containers.names[0])

    # Faults.

    def lose_node(self, name: str) -> None:
        """Cut a node's power: no heartbeats, all its processes dead, its pods as they were in the API."""
        self._heartbeats.lose(name)
        self._end_runners([name])

    def restore_node(self, name: str) -> None:
        """Boot a lost node: it reports again, and the pods it had are found dead."""
        self._heartbeats.restore(name)
        for pod in self._pods.all():
            self._on_pod(pod, False)

    def shut_node_down(self, name: str) -> None:
        """Shut a node down gracefully: its pods get SIGTERM and become Failed as disrupted, then silence."""
        with self._lock:
            runners = [runner for runner in self._runners.values() if runner.node_name == name]
        for runner in runners:
            runner.fail("Terminated", "Pod was terminated in response to imminent node shutdown.")
        for runner in runners:
            wait_until(runner.has_no_process, limit_s=60, what=f"{runner.name} to end")
        self._heartbeats.lose(name)

    def evict_under_pressure(self, namespace: str, pod: str) -> None:
        """End a pod as a node that runs out of memory or disk does."""
        self._runner(namespace, pod).fail("Evicted", "The node was low on resource: memory.")

    def evict(self, namespace: str, pod: str) -> None:
        """Ask for the pod's removal through the eviction API, which respects disruption budgets."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self._api.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", eviction)

    def drain(self, name: str, *, limit_s: float = 60.0) -> None:
        """Cordon a node and evict its pods, waiting while disruption budgets refuse."""
        self.cordon(name)
        for pod in self._pods_on(name):
            wait_until(partial(self._try_evict, pod), limit_s=limit_s, what=f"eviction of {_name(pod)}")

    def cordon(self, name: str, *, is_unschedulable: bool = True) -> None:
        """Forbid (or allow) new pods on a node."""
        self._api.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": is_unschedulable}})

    def oom(self, namespace: str, pod: str, container: str | None = None) -> None:
        """Kill a container as the kernel does when it has used up its memory: OOMKilled, exit code 137."""
        self.kill(namespace, pod, container, reason="OOMKilled")

    def kill(
        self,
        namespace: str,
        pod: str,
        container: str | None = None,
        *,
        number: int = signal.SIGKILL,
        reason: str | None = None,
    ) -> None:
        """Send a signal to a container's process 1."""
        runner = self._runner(namespace, pod)
        runner.containers.signal(container or runner.containers.names[0], number, reason=reason)

    def freeze(self, namespace: str, pod: str) -> None:
        """Stop every process of a pod (SIGSTOP) while the node still reports it as running."""
        self._runner(namespace, pod).containers.freeze(signal.SIGSTOP)

    def thaw(self, namespace: str, pod: str) -> None:
        """Let a frozen pod go on."""
        self._runner(namespace, pod).containers.freeze(signal.SIGCONT)

    def slow_node(self, name: str, *, start_delay_s: float) -> None:
        """Make a node take this long before it starts anything of a new pod (0 to end that)."""
        self._start_delay_s[name] = start_delay_s

    # How it works.

    def _on_pod(self, pod: Object, is_gone: bool) -> None:
        self._follow(pod, is_gone=is_gone)
        self._on_reference(pod, is_gone)  # its name and address may be in the hosts files of others

    def _follow(self, pod: Object, *, is_gone: bool) -> None:
        node = pod["spec"].get("nodeName")
        if node not in self.node_names or self._heartbeats.is_lost(node):
            return
        with self._lock:
            runner = self._runners.get(pod["metadata"]["uid"])
            if runner and is_gone:
                runner.abandon()
            elif runner:
                runner.update(pod)
            elif not is_gone and not self._is_stopped:
                self._take_on(pod)

    def _take_on(self, pod: Object) -> None:
        status = pod.get("status", {})
        if status.get("phase") in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]:
            return
        try:
            context = self._context(pod)
        except (OSError, subprocess.CalledProcessError):
            log.exception("pod %s: no network", _name(pod))  # its next change tries again
            return
        runner = PodRunner(pod, context, self._on_over, ran_before="startTime" in status)
        self._runners[runner.uid] = runner
        runner.start()

    def _context(self, pod: Object) -> PodContext:
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        namespace: str = metadata["namespace"]
        place = self._network.attach(pod.get("status", {}).get("podIP"))  # a pod keeps its address
        return PodContext(
            api=self._api,
            folder=self._folder / "pods" / f"{namespace}_{metadata['name']}_{metadata['uid']}",
            memory_folder=self._memory_folder,
            images=self._images,
            lookup=lambda kind, name: self._config[kind].find(namespace, name),
            hosts_file=lambda own: hosts_file(own, place.address, services=self._services.all(), pods=self._pods.all()),
            claim_path=lambda claim: self._claim_path(namespace, claim),
            place=place,
            node_ip=self._network.node_ip,
            start_delay_s=lambda: self._start_delay_s.get(node, 0.0),
        )

    def _claim_path(self, namespace: str, name: str) -> Path:
        claim = self._api.find(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}") or {}
        volume = claim.get("spec", {}).get("volumeName")
        bound = self._api.find(f"/api/v1/persistentvolumes/{volume}") if volume else None
        if not bound or "hostPath" not in bound["spec"]:
            raise ReferenceMissing(f"persistentVolumeClaim {name} is not bound to a hostPath volume")
        return Path(bound["spec"]["hostPath"]["path"])

    def _on_over(self, runner: PodRunner) -> None:
        with self._lock:
            self._runners.pop(runner.uid, None)
        self._network.detach(runner.place)

    def _on_reference(self, changed: Object, _is_gone: bool) -> None:
        with self._lock:
            for runner in self._runners.values():
                if runner.namespace == changed["metadata"].get("namespace"):
                    runner.refresh()

    def _end_runners(self, nodes: Iterable[str]) -> None:
        with self._lock:
            runners = [runner for runner in self._runners.values() if runner.node_name in nodes]
        for runner in runners:
            runner.abandon()
        for runner in runners:
            runner.join()

    def _runner(self, namespace: str, pod: str) -> PodRunner:
        with self._lock:
            for runner in self._runners.values():
                if (runner.namespace, runner.name) == (namespace, pod):
                    return runner
        raise LookupError(f"no pod {namespace}/{pod} runs on the nodes {', '.join(self.node_names)}")

    def _pods_on(self, node: str) -> list[Object]:
        return self._api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")

    def _try_evict(self, pod: Object) -> bool:
        try:
            self.evict(pod["metadata"]["namespace"], pod["metadata"]["name"])
        except KubeError as refused:
            if refused.status == 429:
                return False
            if refused.status != 404:
                raise
        return True

    def _is_usable(self, name: str) -> bool:
        node = self._api.get(f"/api/v1/nodes/{name}")
        taints = node["spec"].get("taints", [])
        return not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)

    def _find_log(
        self, namespace: str, pod: str, container: str, is_previous: bool
    ) -> tuple[Path, Callable[[], bool]] | None:
        with suppress(LookupError, KeyError):
            runner = self._runner(namespace, pod)
            count = runner.containers.statuses[container].restart_count - (1 if is_previous else 0)
            folder = self._folder / "pods" / f"{namespace}_{pod}_{runner.uid}"
            return log_path(folder, container, count), lambda: runner.containers.pid(container) is not None
        return None


def _name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
