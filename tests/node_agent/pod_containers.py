"""The containers of one pod: which run, how each ended, when it may start again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from node_agent.container_spec import log_path, termination_log
from node_agent.sandbox import Container, ContainerCommand
from node_agent.status import ContainerStatus, Running, State, Terminated, Waiting
from servers.kube_api import Object

# The kubelet waits 10 s and doubles up to 5 min; a tenth of a second to start with serves tests.
FIRST_RESTART_S = 0.1
LONGEST_RESTART_S = 10.0
LAST_WORDS_BYTES = 4096  # the kubelet's limit on a termination message
LOG_END_BYTES = 2048  # and on what it takes from the log instead


class PodContainers:
    """Starts, signals and collects containers; used by one thread, except for `signal` and `freeze`."""

    def __init__(self, pod: Object, folder: Path, on_exit: Callable[[], None]) -> None:
        spec = pod["spec"]
        self.init_names = [container["name"] for container in spec.get("initContainers", ())]
        self.specs: dict[str, Object] = {
            container["name"]: container for container in [*spec.get("initContainers", ()), *spec["containers"]]
        }
        self.statuses = {
            name: ContainerStatus(name=name, image=container["image"]) for name, container in self.specs.items()
        }
        self._policy: str = spec.get("restartPolicy", "Always")
        self._folder = folder
        self._on_exit = on_exit
        self._running: dict[str, Container] = {}
        self._restart_at_s: dict[str, float] = {}
        self._kill_reasons: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Names of the main containers."""
        return [name for name in self.specs if name not in self.init_names]

    @property
    def any_running(self) -> bool:
        """Whether any process is left."""
        return bool(self._running)

    def state(self, name: str) -> State:
        """Return the present state of a container."""
        return self.statuses[name].state

    def is_sidecar(self, name: str) -> bool:
        """Whether it is an init container that keeps running."""
        return name in self.init_names and self.specs[name].get("restartPolicy") == "Always"

    def start(self, name: str, command: ContainerCommand, *, now: str) -> None:
        """Start a container and note it as running."""
        status = self.statuses[name].with_state(Running(started_at=now))
        self.statuses[name] = status.with_readiness(is_ready="readinessProbe" not in self.specs[name])
        path = log_path(self._folder, name, status.restart_count)
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = self._folder / "containers" / name
        self._running[name] = Container(command, folder=folder, log_path=path, on_exit=self._on_exit)
        self._restart_at_s.pop(name, None)

    def wait_with(self, name: str, reason: str, message: str) -> None:
        """Note why a container cannot start."""
        self.statuses[name] = self.statuses[name].with_state(Waiting(reason=reason, message=message))

    def collect(self, *, now: str) -> None:
        """Note the containers that have ended, and when they may start again."""
        for name, container in list(self._running.items()):
            code = container.exit_code
            if code is None:
                continue
            del self._running[name]
            before = self.statuses[name].state
            ended = Terminated(
                exit_code=code,
                reason=self._kill_reasons.pop(name, "Completed" if code == 0 else "Error"),
                message=self._last_words(name, failed=code != 0),
                started_at=before.started_at if isinstance(before, Running) else None,
                finished_at=now,
            )
            self.statuses[name] = self.statuses[name].with_state(ended)
            delay_s = min(LONGEST_RESTART_S, FIRST_RESTART_S * 2 ** self.statuses[name].restart_count)
            self._restart_at_s[name] = time.monotonic() + delay_s

    def forget(self, *, now: str) -> None:
        """Note that the containers of a pod that once ran here are gone, as a kubelet does after a reboot."""
        lost = Terminated(
            exit_code=137,
            reason="ContainerStatusUnknown",
            message="The container could not be located when the node came back",
            finished_at=now,
        )
        self.statuses = {name: status.with_state(lost) for name, status in self.statuses.items()}

    @property
    def are_over(self) -> bool:
        """Whether nothing will run any more: all main containers are done, or an init container failed."""
        if any(self.has_finished(name) and self._failed(name) for name in self.init_names):
            return True
        return all(self.has_finished(name) for name in self.names)

    def has_finished(self, name: str) -> bool:
        """Whether it has ended and its restart policy leaves it so."""
        state = self.statuses[name].state
        if not isinstance(state, Terminated):
            return False
        if self.is_sidecar(name):
            return False
        policy = "OnFailure" if name in self.init_names and self._policy == "Always" else self._policy
        return policy == "Never" or (policy == "OnFailure" and state.exit_code == 0)

    def may_start_at_s(self, name: str) -> float | None:
        """Return the monotonic time from which it may start; None while it runs or when it is done."""
        if name in self._running or self.has_finished(name):
            return None
        return self._restart_at_s.get(name, 0.0)

    def set_readiness(self, name: str, *, is_ready: bool) -> None:
        """Note what the readiness probe of a running container says."""
        self.statuses[name] = self.statuses[name].with_readiness(is_ready=is_ready)

    def signal(self, name: str, number: int = signal.SIGKILL, *, reason: str | None = None) -> None:
        """Send a signal to a container's process 1; `reason` is what its status will say if that ends it."""
        container = self._running.get(name)
        if container:
            if reason:
                self._kill_reasons[name] = reason
            container.kill(number)

    def signal_all(self, number: int) -> None:
        """Send a signal to every running container."""
        for name in list(self._running):
            self.signal(name, number)

    def freeze(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to every process of the pod."""
        for container in list(self._running.values()):
            container.freeze(number)

    def wait_ended(self, limit_s: float) -> None:
        """Wait until no process is left."""
        for container in list(self._running.values()):
            container.wait(limit_s)

    def pid(self, name: str) -> int | None:
        """Process id of a container's process 1."""
        container = self._running.get(name)
        return container.pid if container else None

    def _failed(self, name: str) -> bool:
        state = self.statuses[name].state
        return isinstance(state, Terminated) and state.exit_code != 0

    def _last_words(self, name: str, *, failed: bool) -> str:
        written = termination_log(self._folder, self.specs[name]).read_bytes()[:LAST_WORDS_BYTES]
        fallback = self.specs[name].get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if written or not (failed and fallback):
            return written.decode(errors="replace")
        output = log_path(self._folder, name, self.statuses[name].restart_count).read_bytes()
        return output[-LOG_END_BYTES:].decode(errors="replace")
