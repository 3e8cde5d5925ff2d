"""What a pass has seen: the job, its children, what the trainer reports. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rap_contract.job import RAPJobSpec
from rap_contract.status import Status

from rap_operator.naming import ANNOTATION_PAUSE, OWN_NAMES, QUEUE_LABEL, SCHEDULER_DOMAINS, base
from rap_operator.replanning.values import Seen
from rap_operator.views import JobView, PodView


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The RAPJob object of a pass."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    generation: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_deleting: bool = False
    raw_spec: Mapping[str, Any] = field(default_factory=dict)
    """As the server has it, valid or not."""
    status: Status = field(default_factory=Status)

    @property
    def base(self) -> str:
        return base(self.name, self.uid)

    @property
    def is_paused(self) -> bool:
        return self.annotations.get(ANNOTATION_PAUSE, "").lower() == "true"

    @property
    def is_managed_elsewhere(self) -> bool:
        return self.raw_spec.get("managedBy") not in OWN_NAMES

    @property
    def is_queued(self) -> bool:
        return bool(self.labels.get(QUEUE_LABEL))

    @property
    def scheduler_labels(self) -> dict[str, str]:
        return {key: value for key, value in self.labels.items() if key.startswith(SCHEDULER_DOMAINS)}

    @property
    def scheduler_annotations(self) -> dict[str, str]:
        return {key: value for key, value in self.annotations.items() if key.startswith(SCHEDULER_DOMAINS)}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The document's spec after validation: a spec, or what is wrong with it."""

    spec: RAPJobSpec | None = None
    revision: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What the trainer's metrics say of the current attempt. A number that is missing is None."""

    attempt: int
    progress_at_s: float
    """When the step was last seen to advance, or first seen at all."""
    checkpoint_at_s: float | None = None
    """When the last checkpoint was complete."""
    has_advanced: bool = False
    """A step was made while we looked."""
    seen_at_s: float = 0.0
    """When the metrics were last read."""
    asked_at_s: float | None = None
    """As of when no step is no step: the last answer, or the last but one of several questions without any; None: now."""
    unanswered_at_s: float | None = None
    """When it was last asked in vain, since the last answer."""
    step: float | None = None
    samples_per_second: float | None = None
    exposed_percent: float | None = None
    freshness_s: float | None = None
    """Of half of the rows trained since the scrape before, at most; with no row since, of those before."""
    freshness_counts: tuple[tuple[float, float], ...] = ()
    """Rows of each age and less, seconds and number, over the attempt's life: what the next scrape counts from."""
    lag_records: float | None = None
    plan_hash: str = ""
    may_report: bool = False
    """The rare refresh of the summary in status is due."""

    def known_until_s(self, now_s: float) -> float:
        """Up to when something is known: with many jobs each is asked rarely, and nothing is known of the time since."""
        return now_s if self.asked_at_s is None else self.asked_at_s


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The world of one job, as of one pass."""

    subject: Subject
    stored: Mapping[str, RAPJobSpec] = field(default_factory=dict)
    """Specs of earlier revisions that are still needed, by revision."""
    jobs: tuple[JobView, ...] = ()
    """Its attempts' Jobs."""
    pods: tuple[PodView, ...] = ()
    """Its pods, of any attempt."""
    telemetry: Telemetry | None = None
    replan: Seen | None = None
    """What replanning sees; None: nobody reads for it."""

    @property
    def status(self) -> Status:
        return self.subject.status

    def job(self, attempt: int) -> JobView | None:
        return next((job for job in self.jobs if job.attempt == attempt), None)

    def pods_of(self, attempt: int) -> tuple[PodView, ...]:
        return tuple(pod for pod in self.pods if pod.attempt == attempt)
