"""Random histories of a job against what must always hold; docs/operator.md lists the same for people.

1. Pods of two Jobs of it never exist at a time (the cluster itself checks it when a pod begins), also with two
   operators that both believe they lead.
2. Over is over: a completed or failed job keeps its phase and its attempt.
3. Attempts count up by one; restarts are attempts after the first; every ended attempt is counted once by reason.
4. The budget is never overdrawn: failures since health stay within maxRestarts + 1.
5. Complete and Failed are never both true, and agree with the phase.
6. Left in peace, a job comes to rest: running, suspended or over; suspended means without pods.
7. Deletion leaves nothing.
8. An unchanged world gives an unchanged status: a second pass at once writes nothing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from operator_world.world import NAMESPACE, World
from rap_contract.status import Phase
from rap_operator.api import ApiError
from rap_operator.resources import JOBS, PODS, RAPJOBS

CODES = st.sampled_from([0, 1, 2, 4, 6, 137, 143])
OVER = (Phase.COMPLETED, Phase.FAILED)


class Job(RuleBasedStateMachine):
    """One job, its user, its cluster and its operator, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.apply(restartPolicy={"delaySeconds": 10, "maxRestarts": 2, "resetAfterSeconds": 600})
        self.world.tolerates = (ApiError,)
        self.rival = World(self.world.cluster)
        self.rival.tolerates = (ApiError,)
        self.over: tuple[str, int] | None = None
        self.last_attempt = 1

    @rule(lag=st.integers(0, 6), num=st.integers(1, 4))
    def passes(self, lag: int, num: int) -> None:
        for _ in range(num):
            self.world.round(lag=lag)
            self.holds()

    @rule(back=st.integers(1, 30))
    def old_events_come_again(self, back: int) -> None:
        self.world.redeliver(back)

    @rule()
    def operator_dies(self) -> None:
        self.world.restart_operator()

    @rule(lag=st.integers(0, 6))
    def a_rival_operator_makes_a_pass(self, lag: int) -> None:
        self.rival.pass_once(lag=lag)

    @rule(kinds=st.sets(st.sampled_from(["Job", "ConfigMap", "Service"])))
    def a_webhook_refuses_or_yields(self, kinds: set[str]) -> None:
        self.world.cluster.refuses = dict.fromkeys(kinds, "no")

    @precondition(lambda self: self.world.cluster.of("Job"))
    @rule(parallelism=st.integers(0, 3), suspend=st.booleans())
    def the_job_is_edited_by_hand(self, parallelism: int, suspend: bool) -> None:
        name = self.world.cluster.of("Job")[0]["metadata"]["name"]
        edit = {"spec": {"parallelism": parallelism, "suspend": suspend}}
        self.world.cluster.patch(JOBS, NAMESPACE, name, edit)

    @rule(seconds=st.sampled_from([1, 11, 70, 700, 3700, -1000]))
    def time_goes_by(self, seconds: int) -> None:
        self.world.cluster.now_s += seconds

    @precondition(lambda self: self.world.pods)
    @rule(code=CODES, data=st.data())
    def a_pod_ends(self, code: int, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(self.world.pods))
        if pod.get("status", {}).get("phase") == "Running":
            self.world.cluster.fail_pod(pod, code)

    @precondition(lambda self: self.world.pods)
    @rule()
    def all_pods_end_well(self) -> None:
        for pod in self.world.pods:
            if pod.get("status", {}).get("phase") == "Running":
                self.world.cluster.fail_pod(pod, 0)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_pod_is_evicted(self, data: st.DataObject) -> None:
        self.world.cluster.disrupt_pod(data.draw(st.sampled_from(self.world.pods)))

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data())
    def a_pod_is_deleted(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.world.pods))["metadata"]["name"]
        self.world.cluster.delete(PODS, NAMESPACE, name, {})

    @rule(nodes=st.sets(st.sampled_from(["node-0", "node-1"])))
    def nodes_are_lost_or_come_back(self, nodes: set[str]) -> None:
        self.world.cluster.lost_nodes = nodes

    @precondition(lambda self: self.world.cluster.of("Job"))
    @rule(policy=st.sampled_from(["Foreground", "Background"]))
    def the_job_is_deleted_by_hand(self, policy: str) -> None:
        name = self.world.cluster.of("Job")[0]["metadata"]["name"]
        self.world.cluster.delete(JOBS, NAMESPACE, name, {"propagationPolicy": policy})

    @rule(nonce=st.integers(1, 1000))
    def the_user_wants_a_restart(self, nonce: int) -> None:
        self.world.cluster.patch(RAPJOBS, NAMESPACE, "clicks", {"spec": {"restartNonce": nonce}})
        self.world.round()
        self.holds()
        self.world.round()

    @precondition(lambda self: self.world.pods)
    @rule(nonce=st.integers(1, 1000), node=st.sampled_from(["node-0", "node-1"]))
    def a_restart_meets_a_lost_node(self, nonce: int, node: str) -> None:
        self.world.cluster.lost_nodes = {node}
        self.world.cluster.patch(RAPJOBS, NAMESPACE, "clicks", {"spec": {"restartNonce": nonce}})
        for _ in range(6):
            self.world.round()
            self.holds()

    @rule(
        spec=st.sampled_from(
            [
                {"suspend": True},
                {"suspend": False},
                {"trainer": {"nodes": 1}},
                {"trainer": {"nodes": 2}},
                {"label": "no_such_column"},
                {"label": "label"},
                {"checkpoint": {"path": "/elsewhere"}},
                {"stallSeconds": 100},
            ]
        )
    )
    def the_user_edits(self, spec: dict[str, Any]) -> None:
        self.world.cluster.patch(RAPJOBS, NAMESPACE, "clicks", {"spec": spec})

    @invariant()
    def holds(self) -> None:
        status = self.world.status
        assert self.world.cluster.violations == []
        attempt = status.attempt
        assert attempt is not None
        assert attempt.number in (self.last_attempt, self.last_attempt + 1)
        self.last_attempt = attempt.number
        assert status.restarts.total == attempt.number - 1
        num_ended = attempt.number - (0 if attempt.state == "Ended" else 1)
        assert sum(status.restarts.by_reason.values()) == num_ended
        assert status.restarts.failures <= 3
        assert [a.number for a in status.history] == list(range(attempt.number - 1, 0, -1))[:10]
        true = {c.type for c in status.conditions if c.status == "True"}
        assert not {"Complete", "Failed"} <= true
        assert ("Complete" in true) == (status.phase == Phase.COMPLETED)
        assert ("Failed" in true) == (status.phase == Phase.FAILED)
        if self.over is not None:
            assert (status.phase, attempt.number) == self.over
        if status.phase in OVER:
            self.over = (status.phase, attempt.number)

    def teardown(self) -> None:
        self.world.cluster.lost_nodes = set()
        self.world.cluster.refuses = {}
        self.world.settle()
        version = self.world.cluster.version
        self.world.pass_once()
        assert self.world.cluster.version == version
        self.world.pass_time(700, step_s=100)
        phase = self.world.status.phase
        assert phase in (Phase.RUNNING, Phase.SUSPENDED, *OVER), phase
        if phase == Phase.SUSPENDED:
            assert self.world.pods == []
        self.holds()
        self.world.delete()
        assert [key for key in self.world.cluster.objects if key[0] != "Event"] == []


Job.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestHistoriesOfAJob = Job.TestCase
