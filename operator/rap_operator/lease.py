"""Leader election by a Lease: one process writes, and one that loses the lease writes no more.

Not a lock on its own: between the loss and the exit the client refuses to write (`is_held`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rap_contract.status import time_text

from rap_operator.api import Api, ApiError, ApiUnavailable, Object
from rap_operator.resources import LEASES

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LeaseTiming:
    """Times of the election; the deadline is below the duration so that a loser stops before a winner starts."""

    duration_s: int = 15
    deadline_s: float = 10.0
    renew_s: float = 5.0
    retry_s: float = 1.0


class LeaseLock:
    """Holds, renews and gives back one Lease under one identity."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self.identity = identity
        self._timing = timing or LeaseTiming()
        self._wall_clock = wall_clock
        self._renewed_s: float | None = None
        self._seen: tuple[str, float] = ("", 0.0)
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
                LOG.info("leading as %s", self.identity)
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
            if lease["spec"].get("holderIdentity") == self.identity:
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
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.duration_s,
            "renewTime": now,
        }
        if self._version and self.is_held():
            return self._renew(spec)
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if not error.is_absent:
                raise
            body = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {**spec, "acquireTime": now, "leaseTransitions": 0},
            }
            self._version = _version_of(self._api.create(LEASES, self._namespace, body))
            return True
        held = lease.get("spec") or {}
        if held.get("holderIdentity") != self.identity:
            if held.get("holderIdentity") and not self._is_expired(held):
                self._renewed_s = None
                return False
            spec |= {"acquireTime": now, "leaseTransitions": int(held.get("leaseTransitions") or 0) + 1}
        return self._renew(spec, version=_version_of(lease))

    def _renew(self, spec: Object, version: str = "") -> bool:
        body = {"metadata": {"resourceVersion": version or self._version}, "spec": spec}
        self._version = ""  # unknown until the server answers
        self._version = _version_of(self._api.patch(LEASES, self._namespace, self._name, body))
        return True

    def _is_expired(self, held: Object) -> bool:
        """By our own clock since the holder's renewal last changed: clocks of two machines are not compared."""
        renewed = str(held.get("renewTime") or "")
        if renewed != self._seen[0]:
            self._seen = (renewed, time.monotonic())
        waited_s = time.monotonic() - self._seen[1]
        return waited_s >= int(held.get("leaseDurationSeconds") or self._timing.duration_s)


def _version_of(lease: Object) -> str:
    version: str = lease["metadata"]["resourceVersion"]
    return version
