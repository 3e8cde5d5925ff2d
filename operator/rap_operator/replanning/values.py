"""What a replanning decision is made from, and what it comes to. Values only; times are seconds, shares are 0 to 1.

`at_s` of a reading is the reader's monotonic clock: a wall clock that jumps makes no window full and none stale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from rap_contract.status import Baseline, ReplanRecord, Replans

from rap_operator.notice import Notice

EDITED = "edited"
"""Stands for the hash of a plan that somebody wrote into the ConfigMap by hand."""


@dataclass(frozen=True, kw_only=True)
class RankPage:
    """What one rank says of itself at one moment. A number that is missing is None; one that is not finite is NaN."""

    rank: int
    attempt: int | None = None
    world_size: int | None = None
    plan: str | None = None
    """Hash of the plan in force on it; empty: the runtime's own default."""
    steps: float | None = None
    """Counter: steps whose time was taken."""
    step_seconds: float | None = None
    """Counter: their time, waiting for rows left out."""
    exposed_seconds: float | None = None
    """Counter: of that, waited for preprocessing."""
    stall_seconds: float | None = None
    """Counter: training stood still for plan switches."""
    predicted_seconds: float | None = None
    """The step its plan predicts; only the first rank says it, as everything below."""
    lag_s: float | None = None
    freshness_s: float | None = None
    busy_ratio: float | None = None
    lists: Mapping[str, float] = field(default_factory=dict)
    """Mean list length lately, by feature group."""
    nulls: Mapping[str, float] = field(default_factory=dict)
    """Share of nulls lately, by feature group."""
    capacity: Mapping[str, float] = field(default_factory=dict)
    """Seconds left over, by window of the step."""
    refused: tuple[str, str] | None = None
    """The last plan it could not run, and why."""

    @property
    def wrong(self) -> str:
        """What of it cannot be: a number that is needed and missing, or one that is negative or not finite."""
        needed = {"steps": self.steps, "step time": self.step_seconds, "exposed time": self.exposed_seconds}
        for name, value in needed.items():
            if value is None:
                return f"no {name}"
        numbers = {**needed, "lag": self.lag_s, "predicted step": self.predicted_seconds}
        numbers |= {f"list length of {name}": value for name, value in self.lists.items()}
        numbers |= {f"null share of {name}": value for name, value in self.nulls.items()}
        numbers |= {f"capacity of {name}": value for name, value in self.capacity.items()}
        for name, value in numbers.items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                return f"{name} is {value}"
        return ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the ranks that were asked said at one moment, or why that is nothing to go by."""

    at_s: float
    pages: tuple[RankPage, ...] = ()
    num_asked: int = 0
    error: str = ""
    """Of the first rank that did not answer."""

    @cached_property
    def is_complete(self) -> bool:
        """Whether every rank that was asked has answered."""
        return not self.error and bool(self.pages) and len(self.pages) == self.num_asked

    @cached_property
    def plan(self) -> str | None:
        """The hash that all ranks report; None if they differ or one says nothing."""
        hashes = {page.plan for page in self.pages}
        return hashes.pop() if len(hashes) == 1 else None

    @cached_property
    def attempt(self) -> int | None:
        """The attempt that all ranks report; None if they differ or one says nothing."""
        attempts = {page.attempt for page in self.pages}
        return attempts.pop() if len(attempts) == 1 else None

    @cached_property
    def wrong(self) -> str:
        """What of it cannot be, with the rank that says it."""
        return next((f"rank {page.rank}: {page.wrong}" for page in self.pages if page.wrong), "")


@dataclass(frozen=True, kw_only=True)
class Window:
    """A full window of readings, reduced."""

    seconds: float
    num_readings: int
    step_seconds: float
    exposed_ratio: float
    stall_seconds: float
    """Since the readings of this plan began."""
    prediction_ratio: float | None
    """Measured over predicted step."""
    lag_s: float | None
    """The largest."""
    freshness_s: float | None
    busy_ratio: float | None
    measured: Baseline
    """Workload, capacity and prediction ratio, means over the window."""
    early: tuple[Reading, ...]
    """Its first half."""
    late: tuple[Reading, ...]
    """Its second half."""
    around: tuple[Reading, ...] = ()
    """Readings of several windows up to its end; empty: not so many yet."""


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """Why there is nothing to decide on."""

    reason: Literal[
        "NoMetrics", "MetricsStale", "MetricsPartial", "MetricsInvalid", "OtherPlan", "Stabilizing", "WindowNotFull"
    ]
    message: str
    wait_s: float | None = None
    """After which it may be otherwise."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a search came to."""

    request: str
    """Key of what was asked."""
    state: Literal["Running", "Failed", "Done"]
    message: str = ""
    plan: str = ""
    """Hash of the plan found."""
    shape: str = ""
    """What that plan does, whatever it predicts."""
    before: str = ""
    """Hash of the plan it was compared with."""
    fallback: str = ""
    """Hash of the plan to return to: the one in force, or everything inline where the ranks have none."""
    before_seconds: float = 0.0
    """Predicted step of the plan in force, for the data of today."""
    after_seconds: float = 0.0
    """Predicted step of the plan found."""
    indicative: bool = False
    """From a profile of another machine or model."""
    corrected: bool = False
    """Both predictions were corrected by what the attempt has measured: no known error is left in them."""

    @property
    def gain_ratio(self) -> float:
        return 1 - self.after_seconds / self.before_seconds if self.before_seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Everything of one job that a replanning decision may depend on, besides its spec and status."""

    attempt: int
    is_running: bool
    """All pods of the attempt run."""
    running_s: float = 0.0
    """For how long."""
    num_ranks: int = 1
    failures: int = 0
    """Attempts that ended as failures since the change under way began."""
    now_s: float = 0.0
    """The reader's monotonic clock."""
    readings: tuple[Reading, ...] = ()
    """Oldest first."""
    in_force: str = ""
    """Hash of the plan in the ConfigMap; empty: none; EDITED: not what the operator wrote."""
    stored: frozenset[str] = frozenset()
    """Hashes of the plans the ConfigMap holds."""
    proposal: Proposal | None = None
    may_switch: bool = True
    """There is room under the cluster's limit, or this job has its place already."""
    annotation: str = ""
    """`approve`, `reject` or `refresh`, and after a colon the plan it is about, or anything that makes it another text."""

    @property
    def command(self) -> str:
        return self.annotation.partition(":")[0]

    @property
    def about(self) -> str:
        return self.annotation.partition(":")[2]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Search a plan for the data of today."""

    request: str
    measured: Baseline


@dataclass(frozen=True, kw_only=True)
class Store:
    """Keep the plan that was found, and the one in force, in the ConfigMap."""

    request: str
    keep: tuple[str, ...]
    """Plans that must stay there, the most important first."""


@dataclass(frozen=True, kw_only=True)
class PutInForce:
    """Hand a plan that is stored to the ranks."""

    plan: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Take:
    """Take a place under the cluster's limit of jobs that switch at a time."""


@dataclass(frozen=True, kw_only=True)
class Forget:
    """Forget the result of a search."""


Act = Ask | Store | PutInForce | Take | Forget


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a decision comes to."""

    state: Replans
    record: ReplanRecord | None = None
    """What is told of it; None: nothing was decided."""
    condition: tuple[Literal["True", "False", "Unknown"], str, str] = ("False", "Off", "")
    """Status, reason and message of the condition Replanning."""
    acts: tuple[Act, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake_s: float | None = None

    def doing(self, act: Act) -> Verdict:
        """The same with an act, looked at again soon."""
        return replace(self, acts=(*self.acts, act), wake_s=1.0)
