"""Status of a RAPJob: what the operator has decided and seen. Written by the operator alone.

It is the operator's write-ahead log: an attempt is recorded here before anything of it exists, and its end
before anything of it is removed. Not the trainer's own metrics, of which `metrics` is a rare summary.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rap_contract.model import Model

Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=4096)]
Hash = Annotated[str, Field(max_length=64)]


def time_text(time_s: float) -> str:
    """RFC 3339 with microseconds, in UTC, of seconds since the epoch."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time_s(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time. Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Phase(StrEnum):
    """The one word for where a job stands; derived from the rest of the status, never an input."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    COMPLETED = "Completed"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """Conditions, each of which every job has from its first pass on; Paused only while it holds."""

    ACCEPTED = "Accepted"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    CHECKPOINT_FRESH = "CheckpointFresh"
    STALLED = "Stalled"
    DEGRADED = "Degraded"
    COMPLETE = "Complete"
    FAILED = "Failed"
    REPLANNING = "Replanning"
    PAUSED = "Paused"


class EndClass(StrEnum):
    """Why an attempt ended, as far as the restart budget cares."""

    COMPLETED = "Completed"
    FAILURE = "Failure"
    """The job's own fault: counts."""
    DISRUPTION = "Disruption"
    """Eviction, preemption, a lost node, a pod deleted by hand: never counts."""
    REQUEST = "Request"
    """Suspension, a changed spec, a new nonce: never counts."""
    IGNORED = "Ignored"
    """A failure that a rule says not to count."""


class StatusModel(Model):
    """Part of a status: keys an older or newer operator wrote are left out, not refused."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """A metav1.Condition."""

    type: str = Field(min_length=1, max_length=316)
    """Name of the condition."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(min_length=1, max_length=1024)
    """One word that says why."""
    message: str = Field(default="", max_length=32_768)
    """A sentence with the values."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: Count = 0
    """Generation of the spec it was judged by."""


class Attempt(StatusModel):
    """One start of the whole group of pods."""

    number: int = Field(ge=1)
    """Counts from 1 over the job's life."""
    state: Literal["Recorded", "Created", "Ended"] = "Recorded"
    """Written down; its Job has been seen; over (its pods may still be going)."""
    revision: Hash = ""
    """Hash of the spec its pods run."""
    nodes: Count = 0
    """Number of its pods."""
    cause: str = Field(default="", max_length=253)
    """Why it was started."""
    recorded_at: Time
    """When it was written down; fences checkpoint writes."""
    pods_at: Time | None = None
    """When its first pod was seen."""
    running_at: Time | None = None
    """When all its pods ran."""
    ended_at: Time | None = None
    """When its end was decided."""
    end_class: EndClass | None = None
    """Why it ended, in the budget's terms."""
    end_reason: str = Field(default="", max_length=253)
    """Why it ended, in a word."""
    end_message: Text = ""
    """Why it ended, in a sentence that names pod, node and exit code."""
    exit_code: int | None = None
    """Exit code that decided, if one did."""
    is_final: bool = False
    """The job ends with it."""
    not_before: Time | None = None
    """The next attempt starts no sooner."""


class Restarts(StatusModel):
    """How often the job has started again."""

    total: Count = 0
    """Attempts after the first."""
    failures: Count = 0
    """Failures since the job was last healthy for `resetAfterSeconds`: the budget used."""
    by_reason: Annotated[dict[str, int], Field(max_length=64)] = {}
    """Ended attempts by reason."""


class Revision(StatusModel):
    """Which spec is in force."""

    enforced: Hash = ""
    """Hash of the spec that the next attempt runs."""
    generation: Count = 0
    """Generation that brought it."""
    since: Time | None = None
    """When it came into force."""
    stable: Hash = ""
    """Hash of the last spec that was seen healthy."""
    rejected: Hash = ""
    """Hash of a spec that never became healthy; it is not tried again."""
    failures: Count = 0
    """Failures of the spec in force before it was ever healthy."""


class PlanInForce(StatusModel):
    """The plan the ranks report."""

    hash: Hash = ""
    """Content hash of the plan."""
    since: Time | None = None
    """When it was first reported."""


class Load(StatusModel):
    """What the data of a feature group was like."""

    mean_list_length: float | None = None
    """Elements of a list."""
    null_ratio: float | None = None
    """Share of nulls."""


class Baseline(StatusModel):
    """What was measured when the plan in force was last judged: drift is counted from here."""

    workload: Annotated[dict[str, Load], Field(max_length=64)] = {}
    """By feature group."""
    capacity: Annotated[dict[str, float], Field(max_length=64)] = {}
    """Seconds left over, by window of the step."""
    prediction_ratio: float | None = None
    """Measured over predicted step."""


class Refusal(StatusModel):
    """A plan that is not tried again for a while."""

    shape: Hash
    """Hash of what the plan does, whatever it predicts."""
    reason: str = Field(max_length=253)
    """Why, in a word."""
    until: Time
    """When it may be tried again."""


class Change(StatusModel):
    """A change of plan that is proposed, under way, or being judged."""

    state: Literal["Proposed", "Applying", "Verifying", "Reverting"]
    """Waits for an answer; being handed to the ranks; in force and watched; the plan before is handed back."""
    plan: Hash
    """The new plan."""
    shape: Hash = ""
    """Hash of what the new plan does, whatever it predicts."""
    before: Hash
    """The plan to return to."""
    trigger: str = Field(default="", max_length=64)
    """What made the operator look for it."""
    since: Time
    """When this state began."""
    promised_ratio: float = 0.0
    """Predicted gain, as a share of the step."""
    step_seconds: float | None = None
    """The step measured before."""
    attempt: Count = 0
    """Attempt in which it began."""
    reason: str = Field(default="", max_length=253)
    """Why it is being returned from."""
    baseline: Baseline = Baseline()
    """What was measured when it was decided."""


class ReplanRecord(StatusModel):
    """A decision about replanning, or the same one made several times in a row."""

    time: Time
    """When it was last made."""
    first: Time
    """When it was first made."""
    count: int = Field(default=1, ge=1)
    """How often, as far as was written down: a repetition is noted every half hour."""
    outcome: str = Field(max_length=64)
    """None, Proposed, Switched, Confirmed, Reverted, ..."""
    reason: str = Field(max_length=253)
    """Why, in a word."""
    message: Text = ""
    """Why, in a sentence."""
    plan: Hash = ""
    """The plan decided on."""
    before: Hash = ""
    """The plan in force."""
    numbers: Annotated[dict[str, float], Field(max_length=64)] = {}
    """What the decision was made from."""


class Replans(StatusModel):
    """Where replanning stands."""

    change: Change | None = None
    """The change under way, if there is one."""
    stable: Hash = ""
    """The last plan that proved itself."""
    handed: bool = False
    """The ranks have the plan in force from the ConfigMap; else it is their own."""
    baseline: Baseline | None = None
    """What drift is counted from; none before the first full window."""
    num_ranks: int | None = None
    """Ranks the plan in force is for."""
    fired: Annotated[list[str], Field(max_length=16)] = []
    """Triggers that have led to a search and have not calmed down since."""
    over_since: Time | None = None
    """Since when a trigger has been over its bound."""
    restless_since: Time | None = None
    """Since when data or machine have changed within each window."""
    catching_up: bool = False
    """The stream has been further behind than `maxLagSeconds`, and is not yet back within a tenth of it."""
    searched_at: Time | None = None
    """When a search last found nothing worth a switch."""
    switches: Annotated[list[Time], Field(max_length=1000)] = []
    """Switches of the last 24 hours, newest first."""
    price_seconds: float | None = None
    """Training time a switch costs, measured: the mean of the last ones, the newest counting half."""
    answered: str = Field(default="", max_length=253)
    """The annotation `rap.dev/replan` that has been acted upon."""
    refused: Annotated[list[Refusal], Field(max_length=32)] = []
    """Plans not tried again for a while."""


class Measured(StatusModel):
    """A summary of what the trainer measured; refreshed rarely, see the metrics for more."""

    samples_per_second: float | None = None
    """Rows of all ranks a second."""
    exposed_percent: float | None = None
    """Share of the step that preprocessing adds to it."""
    freshness_seconds: float | None = None
    """Event time to optimizer step, median."""
    lag_records: float | None = None
    """Records not yet read."""
    step: float | None = None
    """Optimizer steps so far."""
    checkpoint_age_seconds: float | None = None
    """Age of the last checkpoint."""
    observed_at: Time | None = None
    """When this was read."""


class Status(StatusModel):
    """Everything the operator knows about a job."""

    observed_generation: Count = 0
    """Generation the whole status was judged by."""
    phase: Phase = Phase.PENDING
    """One word for the conditions."""
    ready: str = Field(default="", max_length=32)
    """Pods that run, of those wanted."""
    conditions: Annotated[list[Condition], Field(max_length=32)] = []
    """What holds, why, and since when."""
    attempt: Attempt | None = None
    """The attempt that is or was last."""
    history: Annotated[list[Attempt], Field(max_length=10)] = []
    """Attempts before it, newest first."""
    restarts: Restarts = Restarts()
    """How often the job has started again."""
    revision: Revision = Revision()
    """Which spec is in force."""
    restart_nonce: Count = 0
    """The nonce that has been acted upon."""
    active_since: Time | None = None
    """When the job was first started, or last resumed: its deadline counts from here."""
    completion_time: Time | None = None
    """When the job ended."""
    plan: PlanInForce = PlanInForce()
    """The plan in force."""
    replanning: Replans = Replans()
    """Where replanning stands."""
    replans: Annotated[list[ReplanRecord], Field(max_length=100)] = []
    """Decisions about replanning, newest first."""
    metrics: Measured = Measured()
    """A summary of what the trainer measured."""
    nodes: Count = 0
    """Pods of the attempt that exist (scale subresource)."""
    selector: str = Field(default="", max_length=512)
    """Selector of the job's pods (scale subresource)."""

    def condition(self, kind: ConditionType) -> Condition | None:
        """The condition of a type, None before the first pass."""
        return next((c for c in self.conditions if c.type == kind), None)
