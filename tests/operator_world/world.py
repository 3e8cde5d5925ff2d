"""One operator over a FakeCluster, driven step by step: no threads, no waiting, time by hand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contract.valid_job import VALID
from operator_world.fake_cluster import NAMES, FakeCluster, Object
from rap_contract.status import Status
from rap_operator.api import Api, ApiError, ApiUnavailable
from rap_operator.apply import NotGone
from rap_operator.cache import Key
from rap_operator.controller import Controller
from rap_operator.observed import Telemetry
from rap_operator.resources import RAPJOBS

NAMESPACE, NAME = "jobs", "clicks"
KEY: Key = (NAMESPACE, NAME)
ROUNDS = 60  # far more than any change needs to settle


def rapjob(**spec: Any) -> Object:
    """A valid RAPJob of two nodes with parts of its spec replaced."""
    document = copy.deepcopy(VALID)
    document["metadata"] |= {"name": NAME, "namespace": NAMESPACE}
    document["spec"] |= {"trainer": {"nodes": 2}, "restartPolicy": {"delaySeconds": 10, "maxRestarts": 2}}
    for key, value in spec.items():
        if isinstance(value, Mapping) and isinstance(document["spec"].get(key), dict):
            document["spec"][key] = {**document["spec"][key], **value}
        else:
            document["spec"][key] = value
    return document


class World:
    """A cluster, an operator in it, and what a test does to both."""

    def __init__(self, cluster: FakeCluster | None = None, api: Api | None = None) -> None:
        self.cluster = cluster or FakeCluster()
        self.api: Api = api or self.cluster
        self.telemetry: Telemetry | None = None
        self.refused: list[str] = []
        """What passes were refused, where a test lets the server refuse."""
        self.tolerates: tuple[type[Exception], ...] = ()
        self.restart_operator()

    def restart_operator(self) -> None:
        """The operator's process is replaced by a new one that knows nothing."""
        self.controller = Controller(
            self.api, wall_clock=lambda: self.cluster.now_s, telemetry_of=lambda subject: self.telemetry
        )
        self._seen = 0

    def sync(self, *, lag: int = 0) -> None:
        """The watches deliver everything that has happened, but for the last `lag` changes."""
        until = max(self.cluster.version - lag, self._seen)
        for version, event, kind, item in self.cluster.log:
            if self._seen < version <= until and kind in NAMES:
                if event == "DELETED":
                    self.controller.cache.remove(NAMES[kind], item)
                else:
                    self.controller.cache.put(NAMES[kind], item)
        self._seen = until

    def redeliver(self, back: int) -> None:
        """The watches deliver old events once more, as after a reconnection."""
        self._seen = max(self._seen - back, 0)

    def round(self, *, lag: int = 0) -> None:
        """One pass of the operator, then one of the cluster's controllers."""
        self.pass_once(lag=lag)
        self.cluster.tick()

    def pass_once(self, *, lag: int = 0) -> None:
        """One pass of the operator for each job it knows."""
        self.sync(lag=lag)
        for view in self.controller.cache.rapjobs():
            try:
                self.controller.reconcile((view.meta.namespace, view.meta.name))
            except NotGone:
                pass
            except (ApiError, ApiUnavailable) as error:
                if not (isinstance(error, ApiError) and error.is_conflict) and not isinstance(error, self.tolerates):
                    raise
                self.refused.append(str(error))

    def settle(self) -> None:
        """Rounds until nothing changes any more."""
        still = 0
        for _ in range(ROUNDS):
            before = self.cluster.version
            self.round()
            still = still + 1 if self.cluster.version == before else 0
            if still == 2:
                return
        raise AssertionError(f"not settled after {ROUNDS} rounds: {self.cluster.calls[-12:]}")

    def pass_time(self, seconds: float, *, step_s: float = 5.0) -> None:
        """Time goes by, with passes on the way."""
        end_s = self.cluster.now_s + seconds
        while self.cluster.now_s < end_s:
            self.cluster.now_s = min(self.cluster.now_s + step_s, end_s)
            self.settle()

    # --- the user

    def apply(self, **spec: Any) -> None:
        """Creates the job."""
        self.cluster.create(RAPJOBS, NAMESPACE, rapjob(**spec))
        self.settle()

    def edit(self, **spec: Any) -> None:
        """Changes parts of the spec."""
        self.cluster.patch(RAPJOBS, NAMESPACE, NAME, {"spec": spec})
        self.settle()

    def annotate(self, key: str, value: str | None) -> None:
        """Sets or removes an annotation."""
        self.cluster.patch(RAPJOBS, NAMESPACE, NAME, {"metadata": {"annotations": {key: value}}})

    def delete(self) -> None:
        """Deletes the job as kubectl does."""
        self.cluster.delete(RAPJOBS, NAMESPACE, NAME, {"propagationPolicy": "Background"})
        self.settle()

    # --- what is there

    @property
    def status(self) -> Status:
        return Status.model_validate(self.cluster.get(RAPJOBS, NAMESPACE, NAME).get("status") or {})

    @property
    def pods(self) -> list[Object]:
        return self.cluster.of("Pod")

    @property
    def attempt(self) -> int:
        attempt = self.status.attempt
        return attempt.number if attempt else 0

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = next(c for c in self.status.conditions if c.type == kind)
        return found.status, found.reason

    def event_reasons(self) -> list[str]:
        """Reasons of all events, in order."""
        return [item["reason"] for _, kind, what, item in self.cluster.log if what == "Event" and kind == "ADDED"]


def end_all(world: World, exit_code: int) -> None:
    """All pods end with a code."""
    for pod in world.pods:
        world.cluster.fail_pod(pod, exit_code)
    world.settle()


def telemetry(world: World, **parts: float | str | bool) -> Telemetry:
    """What a healthy trainer reports now, with parts replaced."""
    now_s = world.cluster.now_s
    base = Telemetry(attempt=world.attempt, progress_at_s=now_s, seen_at_s=now_s, checkpoint_at_s=now_s, step=5.0)
    return replace(base, **parts)  # type: ignore[arg-type]  # names are checked by replace
