"""Leader election by a Lease: one process writes, and one that loses the lease writes no more.

Not a lock on its own: between the loss and the exit the client refuses to write (`is_held`). Not waited for is a holder
whose pod has ended or is gone: the word of the API server on which a StatefulSet starts its next pod of the same name.
Where that word is wrong, as after a deletion by force on a node that lost touch, the old process writes for as long as it
reaches the server, and no longer than until its next renewal is refused (`renew_s`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rap_contract.status import time_text

from rap_operator.api import Api, ApiError, ApiUnavailable, Object
from rap_operator.resources import LEASES, PODS

LOG = logging.getLogger(__name__)
HOLDER_POD = "rap.dev/holder-pod"
"""Annotation: name and UID of the holder's pod, where it is one of the Lease's namespace."""


@dataclass(frozen=True, kw_only=True)
class LeaseTiming:
    """Times of the election; the deadline is below the duration so that a loser stops before a winner starts."""

    duration_s: int = 15
    deadline_s: float = 10.0
    renew_s: float = 5.0
    retry_s: float = 1.0


@dataclass(frozen=True)
class Identity:
    """Who holds a Lease."""

    name: str
    pod_uid: str = ""
    """Of the pod of this name in the Lease's namespace; empty: not known to be such a pod, and never looked for."""


class LeaseLock:
    """Holds, renews and gives back one Lease under one identity."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: Identity,
        timing: LeaseTiming | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self.identity = identity
        self._timing = timing or LeaseTiming()
        self._wall_clock = wall_clock
        self._renewed_s: float | None = None
        self._seen: tuple[str, float] | None = None
        """The renewal of another that was seen last, and since when."""
        self._version = ""
        self.attempted_s = time.monotonic()

    def is_held(self) -> bool:
        """Whether this process may still write."""
        renewed_s = self._renewed_s
        return renewed_s is not None and time.monotonic() - renewed_s < self._timing.deadline_s

    def acquire(self, stopping: threading.Event) -> bool:
        """Waits until the lease is ours; False if asked to stop before."""
        while not stopping.is_set():
            if self.try_once():
                LOG.info("leading as %s", self.identity.name)
                return True
            stopping.wait(self._timing.retry_s)
        return False

    def hold(self, stopping: threading.Event) -> bool:
        """Renews until asked to stop (True) or the lease is lost (False)."""
        while not stopping.wait(self._timing.renew_s if self.is_fresh() else self._timing.retry_s):
            if not self.try_once() and not self.is_held():
                LOG.error("the lease is lost")
                return False
        return True

    def is_fresh(self) -> bool:
        """Whether the last renewal succeeded lately."""
        renewed_s = self._renewed_s
        return renewed_s is not None and time.monotonic() - renewed_s < self._timing.renew_s + self._timing.retry_s

    def release(self) -> None:
        """Gives the lease back, so that the next one need not wait."""
        if not self.is_held():
            return
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self.identity.name:
                version = {"resourceVersion": _version_of(lease)}
                body = {"metadata": version, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
                self._api.patch(LEASES, self._namespace, self._name, body)
        except (ApiError, ApiUnavailable) as error:
            LOG.info("the lease was not given back: %s", error)
        self._renewed_s = None

    def try_once(self) -> bool:
        """One attempt to get or to renew the lease."""
        begun_s = time.monotonic()
        try:
            is_ours = self._try()
        except (ApiError, ApiUnavailable) as error:
            LOG.info("lease: %s", error)
            return False
        finally:
            self.attempted_s = time.monotonic()
        if is_ours:
            self._renewed_s = begun_s
        return is_ours

    def _try(self) -> bool:
        now = time_text(self._wall_clock())
        spec: Object = {
            "holderIdentity": self.identity.name,
            "leaseDurationSeconds": self._timing.duration_s,
            "renewTime": now,
        }
        if self._version and self.is_held():
            try:
                return self._renew(spec, {"resourceVersion": self._version})
            except ApiError as error:
                if not error.is_conflict:  # somebody else has written it: who?
                    raise
        pod_uid = self.identity.pod_uid
        ours = {"annotations": {HOLDER_POD: f"{self.identity.name}/{pod_uid}" if pod_uid else None}}
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if not error.is_absent:
                raise
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace, **(ours if pod_uid else {})},
                "spec": {**spec, "acquireTime": now, "leaseTransitions": 0},
            }
            self._version = _version_of(self._api.create(LEASES, self._namespace, body))
            return True
        held = lease.get("spec") or {}
        if held.get("holderIdentity") != self.identity.name:
            if held.get("holderIdentity") and not self._is_free(lease):
                self._renewed_s = None
                return False
            spec |= {"acquireTime": now, "leaseTransitions": int(held.get("leaseTransitions") or 0) + 1}
        return self._renew(spec, {"resourceVersion": _version_of(lease), **ours})

    def _renew(self, spec: Object, metadata: Object) -> bool:
        self._version = ""  # unknown until the server answers
        body = {"metadata": metadata, "spec": spec}
        self._version = _version_of(self._api.patch(LEASES, self._namespace, self._name, body))
        return True

    def _is_free(self, lease: Object) -> bool:
        """Whether it ran out, by our own clock since its renewal last changed (clocks of two machines are not compared),
        or its holder's pod has ended: asked when a Lease is first seen, and again when a renewal is late.
        """
        held, now_s = lease["spec"], time.monotonic()
        renewed, is_first = str(held.get("renewTime") or ""), self._seen is None
        if self._seen is None or renewed != self._seen[0]:
            self._seen = (renewed, now_s)
        waited_s = now_s - self._seen[1]
        if waited_s >= int(held.get("leaseDurationSeconds") or self._timing.duration_s):
            return True
        is_late = waited_s > self._timing.renew_s + self._timing.retry_s
        return (is_first or is_late) and self._has_holder_ended(lease)

    def _has_holder_ended(self, lease: Object) -> bool:
        told = (lease["metadata"].get("annotations") or {}).get(HOLDER_POD, "")
        name, _, uid = told.partition("/")
        if not uid or name != lease["spec"]["holderIdentity"]:  # what is there an earlier holder said
            return False
        try:
            pod = self._api.get(PODS, self._namespace, name)
        except ApiError as error:
            if not error.is_absent:
                LOG.info("whether pod %s has ended is not known: %s", name, error)
                return False
            LOG.info("pod %s held the lease and is gone", name)
            return True
        has_ended = pod["metadata"]["uid"] != uid or _has_ended(pod.get("status") or {})
        if has_ended:
            LOG.info("pod %s held the lease and has ended", name)
        return has_ended


def _has_ended(status: Object) -> bool:
    """By the kubelet's word on each container: a phase alone is also written for pods whose node is lost."""
    containers = status.get("containerStatuses") or ()
    is_over = status.get("phase") in ("Failed", "Succeeded")
    return is_over and bool(containers) and all("terminated" in (each.get("state") or {}) for each in containers)


def _version_of(lease: Object) -> str:
    version: str = lease["metadata"]["resourceVersion"]
    return version
