"""An operator that replans, over a cluster in memory: trainers are values with a clock, searches answer at once.

Everything between is the real thing: passes, status, ConfigMaps, the limit, events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from contract.valid_job import VALID
from operator_world.fake_cluster import FakeCluster, Object
from operator_world.world import NAME, NAMESPACE, World, rapjob
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.validation import check_job
from rap_operator.api import Api
from rap_operator.cache import Key
from rap_operator.naming import base, plan_name
from rap_operator.replanning.jobs import JobRanks
from rap_operator.replanning.plan_config import PLAN_KEY
from rap_operator.replanning.replanner import Options, Replanner
from rap_operator.replanning.searches import Search
from rap_operator.replanning.values import Proposal, RankPage, Reading
from rap_operator.resources import CONFIG_MAPS, RAPJOBS
from replanning.made_plans import made_plan

JOB: RAPJob = check_job({**VALID, "spec": {**VALID["spec"], "trainer": {"nodes": 2}}})
DEFAULT = made_plan(JOB, "inline", step_s=0.0101)
BETTER = made_plan(JOB, "mlp_bwd", step_s=0.0080)
"""Best for long lists."""
DELAY_S = 20.0  # until a ConfigMap's change reaches all ranks
POLICY: dict[str, Any] = {
    "windowSeconds": 60,
    "stabilizationSeconds": 60,
    "holdSeconds": 0,
    "minIntervalSeconds": 120,
    "plausibleRatio": 0,
}


def promised_s(plan: str, length: float) -> float:
    """The step that a search predicts."""
    return 0.010 if plan == BETTER.hash or length < 30 else 0.014


@dataclass
class Trainer:
    """The ranks of a job: what they run, and what their data is like."""

    plan: str = ""
    attempt: int = 1
    length: float = 20.0
    steps: float = 0.0
    seconds: float = 0.0
    stall_s: float = 0.0
    refuses: set[str] = field(default_factory=set)
    refused: str = ""
    broken: Callable[[RankPage], RankPage] | None = None
    """What is wrong with the pages of rank 1."""
    is_silent: bool = False
    step_of: Callable[[str, float], float] = lambda plan, length: promised_s(plan, length)
    switched: list[str] = field(default_factory=list)
    _seen: str = ""
    _due_s: float = 0.0
    _is_read: bool = False

    def advance(self, now_s: float, seconds: float, text: str, attempt: int) -> None:
        """Trains for a while, with a plan file that holds `text`."""
        if attempt != self.attempt:
            self.attempt, self.steps, self.seconds, self.stall_s = attempt, 0.0, 0.0, 0.0
            self._take(text, now_s, at_once=True)
        self._take(text, now_s)
        self.steps += seconds / self.step_of(self.plan, self.length)
        self.seconds += seconds

    def _take(self, text: str, now_s: float, *, at_once: bool = False) -> None:
        if text != self._seen:
            self._seen, self._due_s, self._is_read = text, now_s + (0.0 if at_once else DELAY_S), False
        if at_once:
            self._is_read = False
        if not text or self._is_read or now_s < self._due_s:
            return
        self._is_read = True
        try:
            plan = Plan.from_json(text)
        except InvalidDocument:
            return
        if plan.hash in self.refuses:
            self.refused = plan.hash
        elif plan.hash != self.plan:
            self.plan = plan.hash
            self.stall_s += 0.2
            self.switched.append(plan.hash)

    def reading(self, now_s: float) -> Reading:
        if self.is_silent:
            return Reading(at_s=now_s, num_asked=2, error="rank 0: timed out")
        pages = [
            RankPage(
                rank=rank,
                attempt=self.attempt,
                plan=self.plan,
                steps=self.steps,
                step_seconds=self.seconds,
                exposed_seconds=0.01 * self.seconds,
                stall_seconds=self.stall_s,
                predicted_seconds=0.01,
                lag_s=1.0,
                lists={"cat": self.length},
                refused=(self.refused, "no memory") if self.refused else None,
            )
            for rank in range(2)
        ]
        if self.broken is not None:
            pages[1] = self.broken(pages[1])
        return Reading(at_s=now_s, pages=tuple(pages), num_asked=2)


class AnsweringSearches:
    """Stands in for the worker processes: long lists want BETTER, short ones the default."""

    def __init__(self, trainers: dict[str, Trainer], names: Callable[[str], str]) -> None:
        self._trainers, self._names = trainers, names
        self._by_uid: dict[str, Search] = {}
        self.asked: list[str] = []
        self.num_running = 0
        self.error = ""

    def ask(self, uid: str, key: Key, *, url: str, request: str) -> None:
        if uid in self._by_uid:
            return
        self.asked.append(key[1])
        trainer = self._trainers[self._names(uid)]
        before = {BETTER.hash: BETTER}.get(trainer.plan, DEFAULT)
        best = BETTER if trainer.length > 30 else DEFAULT
        old_s, new_s = promised_s(trainer.plan, trainer.length), promised_s(best.hash, trainer.length)
        proposal = Proposal(
            request=request,
            state="Failed" if self.error else "Done",
            message=self.error,
            plan=trainer.plan if best is before else best.hash,
            shape=best.hash,
            before=trainer.plan,
            fallback=before.hash,
            before_seconds=old_s,
            after_seconds=new_s,
        )
        self._by_uid[uid] = Search(key=key, url=url, proposal=proposal, plan=best.to_json(), fallback=before.to_json())

    def found(self, uid: str) -> Search | None:
        return self._by_uid.get(uid)

    def forget(self, uid: str) -> None:
        self._by_uid.pop(uid, None)


class _Source:
    def __init__(self, world: ReplanWorld) -> None:
        self._world = world

    def read(self, job: JobRanks) -> Reading:
        return self._world.trainers[job.key[1]].reading(self._world.monotonic_s)


class ReplanWorld(World):
    """Jobs, their trainers and an operator that replans."""

    def __init__(self, api: Api | None = None, cluster: FakeCluster | None = None, *, max_switching: int = 10) -> None:
        self.trainers: dict[str, Trainer] = {}
        self.monotonic_s = 1000.0
        self._max_switching = max_switching
        self.most_switching = 0
        super().__init__(cluster, api)

    def restart_operator(self) -> None:
        super().restart_operator()
        controller = self.controller
        self.searches = AnsweringSearches(self.trainers, self._name_of)
        self.replanner = Replanner(
            controller.cache,
            _Source(self),
            lambda url: "",
            lambda key: None,
            options=Options(max_switching=self._max_switching, interval_s=10.0),
            clock=lambda: self.monotonic_s,
        )
        self.replanner.searches = self.searches  # type: ignore[assignment]  # the same calls, answered here
        controller.replan_with(self.replanner)

    def add(self, name: str = NAME, **replanning: Any) -> Trainer:
        """A job with a trainer."""
        document = rapjob(replanning={**POLICY, **replanning})
        document["metadata"]["name"] = name
        self.trainers[name] = Trainer()
        self.cluster.create(RAPJOBS, NAMESPACE, document)
        self.settle()
        return self.trainers[name]

    def live(self, seconds: float, *, step_s: float = 10.0) -> None:
        """Time goes by: ranks train, the reader reads, the operator passes."""
        end_s = self.cluster.now_s + seconds
        while self.cluster.now_s < end_s:
            self.cluster.now_s += step_s
            self.monotonic_s += step_s
            for name, trainer in self.trainers.items():
                status = self.status_of(name)
                attempt = status.get("attempt") or {}
                if attempt.get("runningAt") and attempt.get("state") == "Created":
                    trainer.advance(self.cluster.now_s, step_s, self.plan_text(name), int(attempt["number"]))
            self.sync()
            self.replanner.reader.read_all()
            self.replanner.hand_out()
            for _ in range(3):
                self.pass_once()
                self.cluster.tick()
                switching = [name for name in self.trainers if self._is_switching(name)]
                self.most_switching = max(self.most_switching, len(switching))

    def status_of(self, name: str) -> Object:
        found: Object = self.cluster.get(RAPJOBS, NAMESPACE, name).get("status") or {}
        return found

    def config(self, name: str = NAME) -> Object:
        """The plan's ConfigMap."""
        uid = self.cluster.get(RAPJOBS, NAMESPACE, name)["metadata"]["uid"]
        return self.cluster.get(CONFIG_MAPS, NAMESPACE, plan_name(base(name, uid)))

    def plan_text(self, name: str = NAME) -> str:
        try:
            return str((self.config(name).get("data") or {}).get(PLAN_KEY, ""))
        except Exception:  # not there yet, or removed by a test
            return ""

    def outcomes(self) -> list[tuple[str, str]]:
        """Outcomes and reasons of the decisions that changed something, oldest first."""
        found = [(record.outcome, record.reason) for record in self.status.replans if record.outcome != "None"]
        return found[::-1]

    def _is_switching(self, name: str) -> bool:
        change = (self.status_of(name).get("replanning") or {}).get("change") or {}
        return change.get("state") in ("Applying", "Reverting")

    def _name_of(self, uid: str) -> str:
        for item in self.cluster.of("RAPJob"):
            if item["metadata"]["uid"] == uid:
                return str(item["metadata"]["name"])
        raise KeyError(uid)


class Killed(BaseException):
    """The operator's process is gone: nothing catches this."""


class KillingApi:
    """Passes requests on, and kills the operator at one of them, before or after it takes effect."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.num_calls = 0
        self.kill_at: int | None = None
        self.has_effect = False

    def __getattr__(self, name: str) -> Any:
        if name not in ("list", "get", "create", "patch", "delete"):
            return getattr(self._cluster, name)

        def request(*arguments: Any, **options: Any) -> Any:
            index, self.num_calls = self.num_calls, self.num_calls + 1
            if index == self.kill_at and not self.has_effect:
                raise Killed
            try:
                return getattr(self._cluster, name)(*arguments, **options)
            finally:
                if index == self.kill_at and self.has_effect:
                    raise Killed

        return request
