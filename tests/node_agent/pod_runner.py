"""One pod on a node: a thread that compares what should run with what runs, until the pod is gone.

Every pass looks at everything again (level-triggered), so deletion, node loss, missing references
and crashed containers may come in any order. Other threads only set a wish and wake it.
"""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import urllib3
from node_agent.container_spec import ImageMissing, PodContext, container_command
from node_agent.environment import ReferenceMissing
from node_agent.hosts import RESOLVER
from node_agent.pod_containers import PodContainers
from node_agent.probing import Probing
from node_agent.status import PodFacts, Running, Terminated, agrees, pod_status
from node_agent.tokens import TokenSource
from node_agent.volumes import PodVolumes, VolumeSource
from servers.kube_api import STRATEGIC_PATCH, KubeError, Object

log = logging.getLogger(__name__)

RETRY_S = 0.3
UNREACHABLE = (urllib3.exceptions.HTTPError, OSError)


class PodRunner:
    """Runs one pod from its binding to its removal from the API."""

    def __init__(
        self, pod: Object, context: PodContext, on_over: Callable[[PodRunner], None], *, ran_before: bool = False
    ) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.node_name: str = pod["spec"]["nodeName"]
        self.place = context.place
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self._context = context
        self._on_over = on_over
        self._wake = threading.Event()
        self.containers = PodContainers(pod, context.folder, self._wake.set)
        self._probing = Probing(self.containers, context.place.address)
        tokens = TokenSource(context.api, pod)
        self._volumes = PodVolumes(
            pod,
            VolumeSource(
                folder=context.folder,
                memory_folder=context.memory_folder,
                lookup=context.lookup,
                token=tokens.token,
                claim_path=context.claim_path,
            ),
        )
        self._facts = PodFacts(pod_ip=context.place.address, host_ip=context.node_ip, started_at=_now())
        self._sent: Object = {}
        self._is_prepared = False
        self._is_abandoned = False
        self._is_stale = False
        self._is_overwritten = False
        self._ending_since_s: float | None = None
        self._start_at_s = time.monotonic() + context.start_delay_s()
        if ran_before:
            self.containers.forget(now=_now())
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"pod-{self.name}")

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def update(self, pod: Object) -> None:
        """Take the newest object of the pod, which may say that it is being deleted."""
        self.pod = pod
        self._is_stale = True  # labels and annotations may be in a downwardAPI volume
        self._is_overwritten = self._is_overwritten or not agrees(pod.get("status", {}), self._sent)
        self._wake.set()

    def refresh(self) -> None:
        """Look again at what volumes and the hosts file are made of."""
        self._is_stale = True
        self._wake.set()

    def abandon(self) -> None:
        """Kill everything and say nothing to the API: the node is lost or the pod was forced away."""
        self._is_abandoned = True
        self._wake.set()

    def fail(self, reason: str, message: str) -> None:
        """End the pod as the node itself does on shutdown or under pressure: Failed, a disruption."""
        self._facts = replace(self._facts, failure=(reason, message), is_disruption=True)
        self._wake.set()

    def has_no_process(self) -> bool:
        """Whether every container has ended or none was started."""
        return not self.containers.any_running

    def join(self, limit_s: float = 10.0) -> None:
        """Wait until the thread has ended."""
        self._thread.join(limit_s)

    def _run(self) -> None:
        delay_s: float | None = 0.0
        while not self._is_abandoned:
            if delay_s != 0:
                self._wake.wait(delay_s)
            self._wake.clear()
            try:
                delay_s = self._pass()
            except UNREACHABLE:
                delay_s = RETRY_S
            except KubeError as refused:
                if refused.status in (404, 409):  # gone, or another pod of that name
                    self._is_abandoned = True
                else:
                    log.warning("pod %s: the API server refuses: %s", self._path, refused)
                delay_s = RETRY_S
        self.containers.signal_all(signal.SIGKILL)
        self.containers.wait_ended(10.0)
        self._volumes.remove()
        shutil.rmtree(self._context.folder / "volumes", ignore_errors=True)
        self._on_over(self)

    def _pass(self) -> float | None:
        """Do what is due; return the seconds until something is due again, None to wait for a wish."""
        self.containers.collect(now=_now())
        is_deleted = "deletionTimestamp" in self.pod["metadata"]
        if is_deleted or self._facts.failure:
            delay_s = self._end()
            self._publish()
            if is_deleted and not self.containers.any_running:
                self._remove()
            return delay_s
        due_s = self._prepare()
        if self._is_prepared:
            due_s = min([due_s, self._start_due(), self._probing.run_due()])
        self._publish()
        return None if due_s == float("inf") else due_s

    def _end(self) -> float | None:
        """SIGTERM once, SIGKILL when the grace period, which may be shortened meanwhile, is over."""
        if not self.containers.any_running:
            return None
        now_s = time.monotonic()
        grace_s = self.pod["metadata"].get("deletionGracePeriodSeconds")
        if grace_s is None:
            grace_s = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        if self._ending_since_s is None:
            self._ending_since_s = now_s
            self.containers.signal_all(signal.SIGTERM)
        left_s: float = self._ending_since_s + grace_s - now_s
        if left_s > 0:
            return left_s
        self.containers.signal_all(signal.SIGKILL)
        return RETRY_S

    def _prepare(self) -> float:
        if self._is_prepared and not self._is_stale:
            return float("inf")
        if not self._is_prepared and time.monotonic() < self._start_at_s:
            return self._start_at_s - time.monotonic()
        self._is_stale = False
        if not self._is_prepared:
            self._context.folder.mkdir(parents=True, exist_ok=True)
            (self._context.folder / "resolv.conf").write_text(RESOLVER)
        self._write_hosts()
        try:
            if self._is_prepared:
                self._volumes.refresh(self._addressed_pod())
            else:
                self._volumes.prepare(self._addressed_pod())
        except ReferenceMissing:
            return float("inf") if self._is_prepared else RETRY_S  # a running pod keeps what it had
        self._is_prepared = True
        return float("inf")

    def _addressed_pod(self) -> Object:
        """Return the pod with its addresses, which its object has only after the first report."""
        addresses = {"podIP": self._context.place.address, "hostIP": self._context.node_ip}
        return {**self.pod, "status": {**self.pod.get("status", {}), **addresses}}

    def _write_hosts(self) -> None:
        """Rewrite in place: the file is bound into containers, a new one would not be seen there."""
        path = self._context.folder / "hosts"
        content = self._context.hosts_file(self.pod)
        if not path.exists() or path.read_text() != content:
            path.write_text(content)

    def _start_due(self) -> float:
        """Start what may start now; return the seconds until the next may."""
        for name in self.containers.init_names:
            if self.containers.is_sidecar(name):
                if isinstance(self.containers.state(name), Running) or self._facts.is_initialized:
                    continue
            elif isinstance(state := self.containers.state(name), Terminated) and state.exit_code == 0:
                continue
            return self._start(name)
        self._facts = replace(self._facts, is_initialized=True)
        sidecars = [name for name in self.containers.init_names if self.containers.is_sidecar(name)]
        due_s = min(self._start(name) for name in [*sidecars, *self.containers.names])
        if all(self.containers.has_finished(name) for name in self.containers.names):
            for name in sidecars:
                self.containers.signal(name, signal.SIGTERM)
        return due_s

    def _start(self, name: str) -> float:
        may_start_at_s = self.containers.may_start_at_s(name)
        if may_start_at_s is None:
            return float("inf")
        wait_s = may_start_at_s - time.monotonic()
        if wait_s > 0:
            return wait_s
        try:
            command = container_command(
                self._addressed_pod(), self.containers.specs[name], self._context, self._volumes
            )
        except (ReferenceMissing, ImageMissing) as missing:
            reason = "ErrImagePull" if isinstance(missing, ImageMissing) else "CreateContainerConfigError"
            self.containers.wait_with(name, reason, str(missing))
            return RETRY_S
        self.containers.start(name, command, now=_now())
        self._probing.begin(name)
        return 0.0 if name in self.containers.init_names else float("inf")

    def _publish(self) -> None:
        containers = self.containers
        is_ending = "deletionTimestamp" in self.pod["metadata"] or self._facts.failure is not None
        status = pod_status(
            self._facts,
            [containers.statuses[name] for name in containers.names],
            [containers.statuses[name] for name in containers.init_names],
            is_over=containers.are_over or (is_ending and not containers.any_running),
            now=_now(),
            before=self._sent,
        )
        if status != self._sent or self._is_overwritten:
            body = {"metadata": {"uid": self.uid}, "status": status}
            self._context.api.patch(f"{self._path}/status", body, content_type=STRATEGIC_PATCH)
            self._sent = status
            self._is_overwritten = False

    def _remove(self) -> None:
        """Confirm the deletion to the API, as a kubelet does once nothing of the pod is left."""
        with suppress(KubeError):
            self._context.api.delete(self._path, gracePeriodSeconds=0, preconditions={"uid": self.uid})
        self._is_abandoned = True


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
