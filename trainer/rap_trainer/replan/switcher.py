"""A rank's part in a change of plan: what it tells the others, and what it does when all agree.

Each message before a step names the plan this rank could run next and the one it refuses. All ranks decide alike from
the messages (`step/agreement.py`): when every one could run the same plan they take it after the step in hand; when
one refuses it none takes it. So a switch costs no message, loses no row, and cannot happen on some ranks only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from rap_contract import metrics
from rap_contract.plan import Plan
from rap_contract.pod import ENV_PLAN_FILE

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.replan.candidate import Candidate, number_of
from rap_trainer.replan.watch import PlanWatch
from rap_trainer.step.runtime import Runtime

NONE = "none"
"""How the metrics name the runtime's own default."""
VETOED = "another rank cannot run it"


class Switcher:
    """Switches a runtime's plan. Called by the training loop alone; the watch prepares in its own thread."""

    def __init__(
        self, runtime: Runtime, store: MetricStore, *, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self._runtime, self._store, self._tell = runtime, store, tell
        self._lock = Lock()
        self._prepared: Plan | None = None
        self._dropped = 0
        self._counted = 0
        self._watch: PlanWatch | None = None
        self._say()

    @classmethod
    def watching_environment(
        cls, environment: Mapping[str, str], runtime: Runtime, store: MetricStore, *, tell: Callable[[str], None]
    ) -> Switcher:
        """Watches the plan file that the environment names; without one the plan never changes."""
        made = cls(runtime, store, tell=tell)
        name = environment.get(ENV_PLAN_FILE)
        if name:
            made.watch(PlanWatch(Path(name), prepare=made.prepare, in_force=runtime.plan))
            assert made._watch is not None
            made._watch.start()
        return made

    def watch(self, watch: PlanWatch) -> None:
        """Takes its candidates from a watch, which prepares by `prepare`."""
        self._watch = watch

    def prepare(self, plan: Plan) -> None:
        """Gets the runtime ready, in whatever thread. Raises PlanRefused."""
        with self._lock:
            self._runtime.prepare_plan(plan)
            self._prepared = plan

    def offer(self) -> tuple[int, int]:
        """The plan this rank could run next, and the one it refuses; 0: none."""
        candidate = self._candidate()
        if candidate is None:
            return 0, 0
        if candidate.plan is None:
            self._refused(candidate.number, candidate, candidate.reason)
            return 0, candidate.number
        return (0, 0) if candidate.number == self._dropped else (candidate.number, 0)

    def act(self, *, switch: int, drop: int) -> None:
        """What the ranks have agreed on, between two steps."""
        candidate = self._candidate()
        if drop and drop != self._dropped:
            self._dropped = drop
            self._refused(drop, candidate, VETOED)
        if not switch or candidate is None or candidate.number != switch or candidate.plan is None:
            return
        if self._runtime.plan is not None and number_of(self._runtime.plan.hash) == switch:
            return
        self._switch(candidate, candidate.plan)

    def close(self) -> None:
        """Ends the watch."""
        if self._watch is not None:
            self._watch.close()

    def _candidate(self) -> Candidate | None:
        return None if self._watch is None else self._watch.candidate

    def _switch(self, candidate: Candidate, plan: Plan) -> None:
        began_s, before = time.monotonic(), self._runtime.plan
        with self._lock:
            if self._prepared is not plan:  # the file has changed again since
                self._runtime.prepare_plan(plan)
            self._runtime.switch_plan()
            self._prepared = None
        ended_s = time.monotonic()
        self._store.inc(metrics.PLAN_SWITCHES, outcome="switched")
        self._store.inc(metrics.PLAN_SWITCH_STALL_SECONDS, ended_s - began_s)
        self._store.observe(metrics.PLAN_SWITCH_SECONDS, ended_s - candidate.seen_s)
        self._say()
        old = NONE if before is None else before.hash
        self._tell(f"plan {plan.hash} takes the place of {old}; training stood still for {ended_s - began_s:.3f} s")

    def _refused(self, number: int, candidate: Candidate | None, reason: str) -> None:
        if self._counted == number:
            return
        self._counted = number
        name = candidate.hash if candidate is not None and candidate.number == number else f"{number:015x}"
        self._store.inc(metrics.PLAN_SWITCHES, outcome="vetoed")
        self._store.set_info(metrics.PLAN_REFUSED_INFO, plan=name, reason=reason)
        self._tell(f"plan {name} is not run: {reason}")

    def _say(self) -> None:
        """The plan in force, as metrics."""
        plan = self._runtime.plan
        self._store.set_info(metrics.PLAN_INFO, plan=NONE if plan is None else plan.hash)
        if plan is None:
            return
        for part in plan.prediction.parts:
            self._store.set(metrics.PREDICTED_STEP_SECONDS, part.seconds, part=part.name)
