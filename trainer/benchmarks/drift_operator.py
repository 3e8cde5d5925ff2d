"""The operator's part of a drift on GPUs, in memory: its own decision, its own search process, on virtual time. For `drift_bench.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.metrics import TRAINER
from rap_contract.operations import Replanning, Triggers
from rap_contract.plan import Plan
from rap_contract.status import Replans
from rap_operator.replanning.decide import decide_replanning
from rap_operator.replanning.values import Ask, Forget, Proposal, PutInForce, Reading, Seen, Store
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.evaluation.workload import group_columns
from rap_trainer.replan.planning_page import PlanningPage
from rap_trainer.replan.profile_in_force import ProfileInForce

POLICY = Replanning(
    window_seconds=30,
    stabilization_seconds=10,
    hold_seconds=10,
    min_interval_seconds=60,
    threshold=0.002,
    price_seconds=0.1,
    triggers=Triggers(prediction_ratio=0.08),
)
"""Sooner than the defaults, for the drift is over in an hour; the price is what a prepared switch costs, and for so little small gains
are worth it: a plan that turns out worse is taken back. Beside a neighbour steps were 8 to 17 % longer on an H200 (2026-11-30)."""
MEMORY_BYTES = 4 << 30
TOLD = ("stepSeconds", "predictedBeforeSeconds", "predictedAfterSeconds", "gainRatio", "gainedRatio", "predictionRatio")


@dataclass
class Operator:
    """The operator's part on the first rank, in memory, beside the pages that the trainer serves for it."""

    job: RAPJob
    runtime: CapturedRuntime
    owners: dict[str, int]
    lists: frozenset[str]
    """Names of the columns that hold lists."""
    plan: Plan | None = None
    state: Replans = field(default_factory=Replans)
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=64))
    proposal: Proposal | None = None
    search: Future[str] | None = None
    plans: dict[str, Plan] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    in_force: str = ""
    said: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "rap_operator.replanning.worker", "--memory-bytes", str(MEMORY_BYTES)]
        self._worker = subprocess.Popen(
            [*command, "--deadline-seconds", "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._thread = ThreadPoolExecutor(1)
        self.store = MetricStore(TRAINER)
        self.known = ProfileInForce(self.job, {}, self.store)
        self.planning = PlanningPage(
            self.job, self.store, self.runtime, profile=self.known, owners=self.owners, default_window="output_dist"
        )

    def train_on(self, length: float) -> None:
        """Lists are as long as this lately, in every group that has any."""
        for group, names in group_columns(self.job.spec.features).items():
            if any(name in self.lists for name in names):
                self.store.set(metrics.MEAN_LIST_LENGTH, length, group=group)

    def first_plan(self) -> Plan:
        """The search's answer for a job without a plan."""
        found = json.loads(self._ask())
        self.plan = Plan.from_json(found["plan"])
        self.plans[self.plan.hash] = self.plan
        return self.plan

    def look(self, now_s: float) -> str:
        """Passes until nothing more is to be done; gives the plan to hand to the ranks, or nothing."""
        if self.search is not None and self.search.done():
            found = json.loads(self.search.result())
            self.search = None
            self._take(found)
        assert self.plan is not None
        for _ in range(6):
            seen = Seen(
                attempt=1,
                is_running=True,
                running_s=now_s,
                num_ranks=self.plan.num_ranks,
                now_s=now_s,
                readings=tuple(self.readings),
                in_force=self.in_force,
                stored=frozenset(self.stored),
                proposal=self.proposal,
            )
            verdict = decide_replanning(POLICY, self.state, seen, now_s)
            self.state = verdict.state
            record = verdict.record
            if record is not None and (record.outcome != "None" or record.reason != "Steady"):
                said = {"at_s": round(now_s), "outcome": record.outcome, "reason": record.reason}
                told = {name: record.numbers[name] for name in TOLD if name in record.numbers}
                if not self.said or (said["outcome"], said["reason"]) != tuple(
                    self.said[-1][name] for name in ("outcome", "reason")
                ):
                    self.said.append(said | told)
            for act in verdict.acts:
                match act:
                    case Ask():
                        if self.search is None:
                            self.search = self._thread.submit(self._ask)
                            self.proposal = Proposal(request=act.request, state="Running")
                    case Store():
                        self.stored |= set(act.keep)
                    case PutInForce():
                        self.in_force = act.plan
                        return act.plan
                    case Forget():
                        self.proposal = None
            if not verdict.acts:
                break
        return ""

    def _ask(self) -> str:
        page = self.planning().decode()
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(page + "\n")
        self._worker.stdin.flush()
        return self._worker.stdout.readline()

    def _take(self, found: dict[str, Any]) -> None:
        assert self.proposal is not None
        if "error" in found:
            self.proposal = replace(self.proposal, state="Failed", message=found["error"])
            return
        for name in ("plan", "fallbackPlan"):
            plan = Plan.from_json(found[name])
            self.plans[plan.hash] = plan
        self.proposal = replace(
            self.proposal,
            state="Done",
            plan=found["hash"],
            shape=found["shape"],
            before=found["before"],
            fallback=found["fallback"],
            before_seconds=found["beforeSeconds"],
            after_seconds=found["afterSeconds"],
            corrected=True,
        )

    def close(self) -> None:
        self._worker.kill()
