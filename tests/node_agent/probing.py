"""When each probe of a pod is due, and what its result does to the container."""

from __future__ import annotations

import signal
import time

from node_agent.pod_containers import PodContainers
from node_agent.probes import ProbeState, passes
from node_agent.status import Running
from servers.kube_api import Object

KINDS = ("startupProbe", "readinessProbe", "livenessProbe")


class Probing:
    """The probes of one pod's containers; used by the pod's own thread."""

    def __init__(self, containers: PodContainers, address: str) -> None:
        self._containers = containers
        self._address = address
        self._states: dict[tuple[str, str], ProbeState] = {}

    def begin(self, name: str) -> None:
        """Count anew for a container that has just started."""
        now_s = time.monotonic()
        for kind in KINDS:
            if probe := self._containers.specs[name].get(kind):
                first_s = now_s + probe.get("initialDelaySeconds", 0)
                self._states[name, kind] = ProbeState(due_s=first_s)

    def run_due(self) -> float:
        """Run what is due; return the seconds until the next probe, infinity without one."""
        next_s = float("inf")
        for (name, kind), state in list(self._states.items()):
            if not isinstance(self._containers.state(name), Running):
                continue
            if kind != "startupProbe" and self._is_starting(name):
                next_s = min(next_s, self._states[name, "startupProbe"].due_s)
                continue
            if state.due_s <= time.monotonic():
                state = self._run(name, kind, state)
            next_s = min(next_s, state.due_s)
        return max(0.01, next_s - time.monotonic())

    def _run(self, name: str, kind: str, state: ProbeState) -> ProbeState:
        container = self._containers.specs[name]
        probe: Object = container[kind]
        passed = passes(probe, container, address=self._address, pid=self._containers.pid(name))
        period_s = float(probe.get("periodSeconds", 10))
        state = state.with_result(passed=passed, now_s=time.monotonic(), period_s=period_s)
        self._states[name, kind] = state
        has_failed = state.failures >= probe.get("failureThreshold", 3)
        if kind != "readinessProbe":
            if has_failed:
                self._containers.signal(name, signal.SIGKILL)
            elif kind == "startupProbe" and passed:
                del self._states[name, kind]
        elif has_failed or state.passes >= probe.get("successThreshold", 1):
            self._containers.set_readiness(name, is_ready=not has_failed)
        return state

    def _is_starting(self, name: str) -> bool:
        return (name, "startupProbe") in self._states
