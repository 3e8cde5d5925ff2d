"""A run as lines of text: for logs and pipes (Plain), and for programs (JsonLines)."""

from __future__ import annotations

from typing import TextIO

from rap_trainer.display.json_form import Shown, encode
from rap_trainer.display.progress import Event, Outcome, Progress, Run
from rap_trainer.display.quantities import clock, count, milliseconds, percent, ratio, seconds

PLAIN_INTERVAL_S = 10.0  # a log line often enough to see a stall, rarely enough to keep a day readable


class Plain:
    """One line now and then, and one for every event, with times in UTC."""

    def __init__(self, stream: TextIO, *, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._next_s = float("-inf")

    def start(self, run: Run) -> None:
        self._write(run.time_s, headline(run))

    def update(self, progress: Progress) -> None:
        if progress.time_s >= self._next_s:
            self._next_s = progress.time_s + self._interval_s
            self._write(progress.time_s, progress_line(progress))

    def event(self, event: Event) -> None:
        self._write(event.time_s, event.sentence)

    def finish(self, outcome: Outcome) -> None:
        self._stream.write(summary(outcome) + "\n")
        self._stream.flush()

    def _write(self, time_s: float, text: str) -> None:
        self._stream.write(f"{clock(time_s)} {text}\n")
        self._stream.flush()


class JsonLines:
    """Every value as one line of JSON (json_form.py)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, run: Run) -> None:
        self._write(run)

    def update(self, progress: Progress) -> None:
        self._write(progress)

    def event(self, event: Event) -> None:
        self._write(event)

    def finish(self, outcome: Outcome) -> None:
        self._write(outcome)

    def _write(self, value: Shown) -> None:
        self._stream.write(encode(value) + "\n")
        self._stream.flush()


def headline(run: Run) -> str:
    """Who trains what, from where, on what."""
    ranks = f"{run.world} rank{'s' if run.world != 1 else ''}"
    begin = f"resumes at step {run.resumed_step:,}" if run.resumed_step else "begins with a fresh model"
    return (
        f"{run.job}: attempt {run.attempt} on {ranks} ({run.device}, {run.runtime}), "
        f"{run.batch_size:,} rows a step from {run.source}; {begin}"
    )


def progress_line(progress: Progress) -> str:
    """The numbers on one line; what is unknown is left out."""
    p = progress
    parts = [f"step {p.step:,}", f"{count(p.rows)} rows", f"{count(p.rows_per_s)} rows/s", milliseconds(p.step_ms)]
    if p.normalized_entropy is not None:
        parts.append(f"NE {ratio(p.normalized_entropy)}")
    if p.auc is not None:
        parts.append(f"AUC {ratio(p.auc)}")
    if p.calibration is not None:
        parts.append(f"calibration {ratio(p.calibration, 3)}")
    if p.exposed_ratio is not None:
        parts.append(f"exposed {percent(p.exposed_ratio)}")
    if p.freshness_p50_s is not None:
        parts.append(f"fresh p50 {seconds(p.freshness_p50_s)} p99 {seconds(p.freshness_p99_s)}")
    if p.lag_records is not None:
        parts.append(f"lag {count(p.lag_records)}" + (f" ({seconds(p.lag_s)})" if p.lag_s is not None else ""))
    if p.checkpoint_age_s is not None:
        parts.append(f"checkpoint {seconds(p.checkpoint_age_s)} ago")
    if p.bad_rows:
        parts.append(f"bad rows {count(p.bad_rows)}")
    return " | ".join(parts)


def summary(outcome: Outcome) -> str:
    """What a person should remember of an attempt: some lines."""
    rate = outcome.rows / outcome.seconds if outcome.seconds > 0 else None
    pace = f"{seconds(outcome.seconds)}, {count(rate)} rows/s"
    rows = [("trained", f"{outcome.rows:,} rows in {outcome.steps:,} steps, {pace}")]
    if (last := outcome.last) is not None:
        window = _quality(last.normalized_entropy, last.auc, last.calibration)
        life = _quality(last.life_normalized_entropy, last.life_auc, last.life_calibration)
        rows += [("quality", f"{window} over the window"), ("over life", f"{life} over {count(last.rows)} rows")]
        if last.bad_rows:
            rows.append(("bad rows", f"{last.bad_rows:,}"))
    if outcome.checkpoint_step is not None:
        rows.append(("checkpoint", f"step {outcome.checkpoint_step:,}"))
    if outcome.report is not None:
        rows.append(("report", outcome.report))
    return "\n".join(
        [f"Ended: {outcome.reason} (exit code {outcome.exit_code})", *(f"  {name:<11} {text}" for name, text in rows)]
    )


def _quality(entropy: float | None, auc: float | None, calibration: float | None) -> str:
    return f"NE {ratio(entropy)}, AUC {ratio(auc)}, calibration {ratio(calibration, 3)}"
