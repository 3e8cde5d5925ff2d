"""One writer: the lease is won, kept, lost and taken over, and a loser writes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from operator_world.fake_cluster import FakeCluster, Object
from rap_operator import lease as lease_module
from rap_operator.api import ApiError, ApiUnavailable
from rap_operator.lease import Identity, LeaseLock
from rap_operator.resources import LEASES, PODS, Resource


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


def lock(cluster: FakeCluster, name: str, clock: Clock, *, pod_uid: str = "") -> LeaseLock:
    identity = Identity(name, pod_uid)
    return LeaseLock(cluster, namespace="ops", name="rap", identity=identity, wall_clock=clock.monotonic)


def pod(cluster: FakeCluster, name: str) -> str:
    """The UID of a new pod of operators."""
    body = {"metadata": {"name": name}, "spec": {}, "status": {"phase": "Running"}}
    uid: str = cluster.create(PODS, "ops", body)["metadata"]["uid"]
    return uid


def remove(cluster: FakeCluster, name: str) -> None:
    """As by the kubelet once a pod's processes are gone, or by force."""
    cluster.delete(PODS, "ops", name, {"gracePeriodSeconds": 0})


def remove_and_replace(cluster: FakeCluster, name: str) -> None:
    remove(cluster, name)
    pod(cluster, name)


def end(cluster: FakeCluster, name: str) -> None:
    """As the kubelet tells of a pod that it has evicted."""
    cluster.fail_pod(cluster.get(PODS, "ops", name), 137)


def lose(cluster: FakeCluster, name: str) -> None:
    """As the control plane tells of a pod whose node is gone: nobody knows what has become of its process."""
    cluster.change("Pod", cluster.get(PODS, "ops", name), status={"phase": "Failed"})


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


@pytest.mark.parametrize("happens", [remove, remove_and_replace, end], ids=["gone", "replaced", "evicted"])
def test_a_lease_of_a_pod_that_has_ended_is_taken_at_once(
    clock: Clock, happens: Callable[[FakeCluster, str], None]
) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0")).try_once()
    happens(cluster, "pod-0")
    assert lock(cluster, "pod-1", clock, pod_uid=pod(cluster, "pod-1")).try_once()
    lease = cluster.get(LEASES, "ops", "rap")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("pod-1", 1)


@pytest.mark.parametrize("happens", [lambda cluster, name: None, lose], ids=["it runs", "its node is lost"])
def test_a_lease_of_a_pod_that_may_still_run_is_waited_for(
    clock: Clock, happens: Callable[[FakeCluster, str], None]
) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0")).try_once()
    happens(cluster, "pod-0")
    two = lock(cluster, "pod-1", clock)
    for seconds in (0, 8, 6):
        clock.now_s += seconds
        assert not two.try_once()
    clock.now_s += 2
    assert two.try_once()


def test_a_holder_that_is_no_pod_of_the_leases_namespace_is_never_taken_for_gone(clock: Clock) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "laptop", clock).try_once()
    assert not lock(cluster, "pod-1", clock).try_once()


def test_what_an_earlier_holder_said_of_its_pod_is_not_believed_of_the_next(clock: Clock) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0")).try_once()
    remove(cluster, "pod-0")
    version = cluster.get(LEASES, "ops", "rap")["metadata"]["resourceVersion"]
    older = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": "an older operator"}}
    cluster.patch(LEASES, "ops", "rap", older)
    assert not lock(cluster, "pod-1", clock).try_once()


def test_a_pod_that_may_not_be_read_is_waited_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    assert lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0")).try_once()
    remove(cluster, "pod-0")
    read = cluster.get

    def refuse(resource: Resource, namespace: str, name: str) -> Object:
        if resource is PODS:
            raise ApiError(403, "Forbidden", "pods is forbidden")
        return read(resource, namespace, name)

    monkeypatch.setattr(cluster, "get", refuse)
    two = lock(cluster, "pod-1", clock)
    assert not two.try_once()
    clock.now_s += 16
    assert two.try_once()


def test_a_replica_that_waits_asks_for_the_holders_pod_when_it_starts_and_when_a_renewal_is_late(clock: Clock) -> None:
    cluster = FakeCluster()
    one, two = lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0")), lock(cluster, "pod-1", clock)
    cluster.calls.clear()

    def asked() -> int:
        return cluster.calls.count(("get", "Pod", "pod-0"))

    for second in range(60):
        assert second % 5 or one.try_once()
        assert not two.try_once()
        clock.now_s += 1
    assert asked() == 1
    assert one.try_once()
    remove(cluster, "pod-0")  # and with it its process
    for _ in range(7):
        assert not two.try_once()
        clock.now_s += 1
    assert two.try_once()


def test_one_whose_pod_was_removed_by_force_and_that_goes_on_stops_at_its_next_renewal(clock: Clock) -> None:
    cluster = FakeCluster()
    one = lock(cluster, "pod-0", clock, pod_uid=pod(cluster, "pod-0"))
    assert one.try_once()
    remove(cluster, "pod-0")
    assert lock(cluster, "pod-1", clock).try_once()
    clock.now_s += 5
    assert not one.try_once()
    assert not one.is_held()
    assert cluster.get(LEASES, "ops", "rap")["spec"]["holderIdentity"] == "pod-1"


def test_acquire_gives_up_when_asked_to_stop(clock: Clock) -> None:
    cluster = FakeCluster()
    lock(cluster, "one", clock).try_once()
    stopping = threading.Event()
    stopping.set()
    assert not lock(cluster, "two", clock).acquire(stopping)
