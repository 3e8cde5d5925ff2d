"""What a person is told about a run, as frozen values. Nothing here measures, formats or writes.

Every time is given by the caller: `time_s` is Unix time. None means unknown or undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PARTS = ("wait", "data", "preprocess", "forward", "backward", "update", "other")
"""Parts of a step in the order they are drawn, `wait` being the time without rows; others are drawn after them."""


def in_order(parts: Iterable[str]) -> list[str]:
    """Names of parts in the order they are drawn."""
    names = list(dict.fromkeys(parts))
    return [*(name for name in PARTS if name in names), *(name for name in names if name not in PARTS)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known when an attempt begins."""

    job: str
    """Name of the job."""
    attempt: int
    world: int
    """Number of ranks."""
    device: str
    """`cpu`, or the accelerator's name."""
    runtime: str
    """`eager` or `captured`."""
    batch_size: int
    """Rows of a full step of all ranks."""
    source: str
    """Where events come from, as a person would name it: a path or a topic."""
    checkpoint_path: str
    resumed_step: int
    """Step of the checkpoint the attempt began from; 0 for a fresh model."""
    metrics_port: int
    """Port of this rank's Prometheus metrics; 0 for none."""
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: numbers of all ranks, over the time since the report before unless said otherwise."""

    time_s: float
    step: int
    """Optimizer steps in the job's whole life."""
    rows: int
    """Rows trained in the job's whole life."""
    rows_per_s: float
    step_ms: float
    """Mean time of a step."""
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    """The step by part (see PARTS), summing to `step_ms`."""
    exposed_ratio: float | None = None
    """Share of the step that waits for preprocessing, 0 to 1."""
    loss: float | None = None
    """Mean training loss, nats."""
    normalized_entropy: float | None = None
    """Over the sliding window, as the next three."""
    auc: float | None = None
    auc_error: float | None = None
    calibration: float | None = None
    life_normalized_entropy: float | None = None
    """Over the job's whole life, as the next two."""
    life_auc: float | None = None
    life_calibration: float | None = None
    freshness_p50_s: float | None = None
    """Event time to optimizer step."""
    freshness_p99_s: float | None = None
    lag_records: int | None = None
    """Records waiting in the source."""
    lag_s: float | None = None
    """Age of the oldest record waiting."""
    checkpoint_age_s: float | None = None
    """Since the newest complete checkpoint."""
    checkpoint_step: int | None = None
    bad_rows: int = 0
    """Rows that could not be read, in the job's whole life."""
    starved_s: float = 0.0
    """Seconds without enough rows for a step."""
    attempt: int = 0
    world: int = 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened once."""

    time_s: float
    kind: str
    """One word: start, resume, checkpoint, restart, warning, quarantine, replan, publish, guard, stop, end."""
    text: str
    """A sentence."""
    step: int | None = None

    @property
    def sentence(self) -> str:
        """The text with the kind before it, once."""
        return self.text if self.text.startswith(self.kind) else f"{self.kind}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended."""

    time_s: float
    exit_code: int
    reason: str
    """A sentence: `the source has ended`, `asked to stop`, the guard's message."""
    steps: int
    """Steps of this attempt."""
    rows: int
    """Rows trained by this attempt."""
    seconds: float
    """Length of this attempt."""
    last: Progress | None
    """The final numbers; None if no step was made."""
    checkpoint_step: int | None = None
    """Step of the newest complete checkpoint."""
    report: str | None = None
    """Path of the HTML report; None if none is written."""
