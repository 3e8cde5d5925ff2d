"""One writer: the lease is won, kept, lost and taken over, and a loser writes nothing."""

from __future__ import annotations

import threading

import pytest
from operator_world.fake_cluster import FakeCluster, Object
from rap_operator import lease as lease_module
from rap_operator.api import ApiError, ApiUnavailable
from rap_operator.lease import LeaseLock
from rap_operator.resources import LEASES, Resource


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease_module, "time", made)
    return made


def lock(cluster: FakeCluster, identity: str, clock: Clock) -> LeaseLock:
    return LeaseLock(cluster, namespace="ops", name="rap", identity=identity, wall_clock=clock.monotonic)


def test_the_first_comer_leads_and_the_second_waits(clock: Clock) -> None:
    cluster = FakeCluster()
    one, two = lock(cluster, "one", clock), lock(cluster, "two", clock)
    assert one.try_once()
    assert not two.try_once()
    assert (one.is_held(), two.is_held()) == (True, False)


def test_a_lease_not_renewed_is_taken_over_only_after_its_duration_as_the_other_saw_it(clock: Clock) -> None:
    cluster = FakeCluster()
    one, two = lock(cluster, "one", clock), lock(cluster, "two", clock)
    assert one.try_once()
    assert not two.try_once()
    clock.now_s += 9
    assert one.try_once()  # renewed: the other's count begins anew
    assert not two.try_once()
    clock.now_s += 14
    assert not two.try_once()
    assert not one.is_held()  # the loser stops before the winner starts
    clock.now_s += 2
    assert two.try_once()
    assert cluster.get(LEASES, "ops", "rap")["spec"]["leaseTransitions"] == 1
    assert not one.try_once()


def test_the_same_identity_takes_its_own_lease_up_at_once(clock: Clock) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "pod-0", clock).try_once()
    assert lock(cluster, "pod-0", clock).try_once()  # the container was restarted


def test_a_released_lease_is_free_at_once(clock: Clock) -> None:
    cluster = FakeCluster()
    one, two = lock(cluster, "one", clock), lock(cluster, "two", clock)
    one.try_once()
    one.release()
    assert not one.is_held()
    assert two.try_once()


def test_a_renewal_is_one_request(clock: Clock) -> None:
    cluster = FakeCluster()
    one = lock(cluster, "one", clock)
    one.try_once()
    cluster.calls.clear()
    clock.now_s += 5
    assert one.try_once()
    assert cluster.calls == [("patch", "Lease", "rap")]


@pytest.mark.parametrize("error", [ApiUnavailable("no route"), ApiError(500, "", "")], ids=["unreachable", "error"])
def test_a_server_that_does_not_answer_costs_the_lease_after_the_deadline(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    cluster = FakeCluster()
    one = lock(cluster, "one", clock)
    one.try_once()

    def refuse(resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        raise error

    monkeypatch.setattr(cluster, "patch", refuse)
    clock.now_s += 6
    assert not one.try_once()
    assert one.is_held()
    clock.now_s += 5
    assert not one.is_held()


def test_a_lease_written_by_another_between_read_and_write_is_not_ours(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    one, two = lock(cluster, "one", clock), lock(cluster, "two", clock)
    one.try_once()
    two.try_once()
    clock.now_s += 20
    read = cluster.get

    def read_then_lose(resource: Resource, namespace: str, name: str) -> Object:
        found = read(resource, namespace, name)
        monkeypatch.setattr(cluster, "get", read)
        assert lock(cluster, "one", clock).try_once()
        return found

    monkeypatch.setattr(cluster, "get", read_then_lose)
    assert not two.try_once()


def test_acquire_gives_up_when_asked_to_stop(clock: Clock) -> None:
    cluster = FakeCluster()
    lock(cluster, "one", clock).try_once()
    stopping = threading.Event()
    stopping.set()
    assert not lock(cluster, "two", clock).acquire(stopping)
