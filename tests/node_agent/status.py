"""The status of a pod as the kubelet would report it: pure functions from what is known of its containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from servers.kube_api import Object

# Conditions that the kubelet owns; the scheduler and the eviction API own others and keep them.
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Not running yet, or between two runs."""

    reason: str = "ContainerCreating"
    message: str = ""

    def as_object(self) -> Object:
        return {"waiting": {"reason": self.reason, "message": self.message}}


@dataclass(frozen=True, kw_only=True)
class Running:
    """Started and not ended."""

    started_at: str

    def as_object(self) -> Object:
        return {"running": {"startedAt": self.started_at}}


@dataclass(frozen=True, kw_only=True)
class Terminated:
    """Ended, with how."""

    exit_code: int
    reason: str
    message: str = ""
    started_at: str | None = None
    finished_at: str

    def as_object(self) -> Object:
        times = {"finishedAt": self.finished_at, **({"startedAt": self.started_at} if self.started_at else {})}
        return {"terminated": {"exitCode": self.exit_code, "reason": self.reason, "message": self.message, **times}}


State = Waiting | Running | Terminated


@dataclass(frozen=True, kw_only=True)
class ContainerStatus:
    """One container: its state now, and the one before its last restart."""

    name: str
    image: str
    is_ready: bool = False
    restart_count: int = 0
    state: State = Waiting()
    last_state: Terminated | None = None

    def with_state(self, state: State) -> ContainerStatus:
        """Return it in another state; a restart remembers how the last run ended."""
        is_restart = isinstance(state, Running) and isinstance(self.state, Terminated | Waiting)
        ended = self.state if isinstance(self.state, Terminated) else self.last_state
        restarts = self.restart_count + (1 if is_restart and ended else 0)
        return replace(self, state=state, last_state=ended, restart_count=restarts, is_ready=False)

    def with_readiness(self, *, is_ready: bool) -> ContainerStatus:
        """Return it with what its probe says."""
        return replace(self, is_ready=is_ready and isinstance(self.state, Running))

    def as_object(self) -> Object:
        result = {
            "name": self.name,
            "image": self.image,
            "imageID": f"local://{self.image}",
            "ready": self.is_ready,
            "started": isinstance(self.state, Running),
            "restartCount": self.restart_count,
            "state": self.state.as_object(),
        }
        if self.last_state and self.last_state is not self.state:
            result["lastState"] = self.last_state.as_object()
        return result


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """What the agent knows of a pod besides its containers."""

    pod_ip: str
    host_ip: str
    started_at: str
    is_initialized: bool = False
    failure: tuple[str, str] | None = None  # reason and message of a pod that the node ended
    is_disruption: bool = False


def pod_status(
    facts: PodFacts,
    containers: Sequence[ContainerStatus],
    init_containers: Sequence[ContainerStatus],
    *,
    is_over: bool,
    now: str,
    before: Object,
) -> Object:
    """Return the status to patch; `before` is the last one sent, for the times of unchanged conditions."""
    phase = _phase(facts, containers, is_over=is_over)
    is_ready = phase == "Running" and all(container.is_ready for container in containers)
    has_ended = phase in ("Succeeded", "Failed")
    values = {
        "PodReadyToStartContainers": not has_ended,
        "Initialized": facts.is_initialized,
        "ContainersReady": is_ready,
        "Ready": is_ready,
    }
    reason = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else "ContainersNotReady"
    conditions = [
        _condition(kind, values[kind], "" if values[kind] else reason, now, before) for kind in OWN_CONDITIONS
    ]
    if facts.is_disruption:
        conditions.append(_condition("DisruptionTarget", True, "TerminationByKubelet", now, before))
    status: Object = {
        "phase": phase,
        "podIP": facts.pod_ip,
        "podIPs": [{"ip": facts.pod_ip}],
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        "startTime": facts.started_at,
        "conditions": conditions,
        "containerStatuses": [container.as_object() for container in containers],
    }
    if init_containers:
        status["initContainerStatuses"] = [container.as_object() for container in init_containers]
    if facts.failure:
        status["reason"], status["message"] = facts.failure
    return status


def agrees(found: Object, sent: Object) -> bool:
    """Whether the API still holds the conditions that were sent: a silent node's are overwritten as not ready."""
    known = {condition["type"]: condition["status"] for condition in found.get("conditions", ())}
    return all(known.get(condition["type"]) == condition["status"] for condition in sent.get("conditions", ()))


def _phase(facts: PodFacts, containers: Sequence[ContainerStatus], *, is_over: bool) -> str:
    states = [container.state for container in containers]
    if is_over:
        is_success = all(isinstance(state, Terminated) and state.exit_code == 0 for state in states)
        return "Succeeded" if is_success and not facts.failure else "Failed"
    has_started = any(not isinstance(container.state, Waiting) or container.last_state for container in containers)
    return "Running" if facts.is_initialized and has_started else "Pending"


def _condition(kind: str, value: bool, reason: str, now: str, before: Object) -> Object:
    status = "True" if value else "False"
    known = {condition["type"]: condition for condition in before.get("conditions", ())}
    if kind in known and (known[kind]["status"], known[kind].get("reason", "")) == (status, reason):
        unchanged: Object = known[kind]
        return unchanged
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": now}
