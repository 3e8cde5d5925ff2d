"""The report's numbers and tables: tiles, attempts, events. Functions from values to HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import fmean

from rap_trainer.display import quantities as q
from rap_trainer.display.progress import Event, Progress, Run
from rap_trainer.display.story import Story


def tiles(story: Story) -> str:
    """The newest numbers."""
    if not story.points:
        return _tile("trained", "0 rows", "no step was reported")
    outcome = story.outcome
    now = outcome.last if outcome is not None and outcome.last is not None else story.points[-1]
    saved, age = now.checkpoint_step, f"{q.seconds(now.checkpoint_age_s)} old"
    if outcome is not None:
        saved, age = outcome.checkpoint_step, "the newest complete one"
    began_s = story.runs[-1].time_s if story.runs else 0.0
    attempt = [point for point in story.points if point.time_s >= began_s] or [now]
    restarts = max(len(story.runs) - 1, 0)
    shown = [
        _tile("normalized entropy", q.ratio(now.normalized_entropy), f"life {q.ratio(now.life_normalized_entropy)}"),
        _tile("AUC", q.ratio(now.auc), f"life {q.ratio(now.life_auc)}"),
        _tile("calibration", q.ratio(now.calibration, 3), f"life {q.ratio(now.life_calibration, 3)}"),
        _tile("trained", f"{q.count(now.rows)} rows", f"step {now.step:,}"),
        _tile("mean speed", f"{q.count(_rate(attempt, 'rows'))} rows/s", "of the last attempt"),
        _tile("mean step", q.milliseconds(_step_ms(attempt)), "of the last attempt, waiting included"),
        _tile("freshness p50", q.seconds(now.freshness_p50_s), f"p99 {q.seconds(now.freshness_p99_s)}"),
        _tile("exposed", q.percent(_mean(attempt, "exposed_ratio")), "of the step waits for preprocessing"),
        _tile("checkpoint", "none yet" if saved is None else f"step {saved:,}", age),
        _tile(
            "attempts",
            f"{len(story.runs)}",
            f"{restarts} restart{'' if restarts == 1 else 's'}, {q.count(now.bad_rows)} bad rows",
        ),
    ]
    return "".join(shown)


def attempts(runs: Sequence[Run]) -> str:
    """One line per attempt, newest first."""
    rows = [
        (
            q.date_and_time(run.time_s),
            str(run.attempt),
            f"{run.world} × {run.device}, {run.runtime}",  # noqa: RUF001  # a multiplication sign is meant
            f"step {run.resumed_step:,}" if run.resumed_step else "a fresh model",
            run.source,
        )
        for run in reversed(runs)
    ]
    return _table("Attempts", ("began", "attempt", "ranks", "from", "source"), rows)


def events(happened: Sequence[Event]) -> str:
    """One line per event, newest first."""
    rows = [
        (q.date_and_time(e.time_s), q.MISSING if e.step is None else f"{e.step:,}", e.kind, e.text)
        for e in reversed(happened)
    ]
    return _table("Events", ("time", "step", "kind", "what happened"), rows)


def _rate(points: Sequence[Progress], name: str) -> float | None:
    """Growth of an attribute per second from the first report of an attempt to the last."""
    first, last = points[0], points[-1]
    seconds = last.time_s - first.time_s
    return (getattr(last, name) - getattr(first, name)) / seconds if seconds > 0 else None


def _step_ms(points: Sequence[Progress]) -> float | None:
    steps = _rate(points, "step")
    return 1000 / steps if steps else None


def _mean(points: Sequence[Progress], name: str) -> float | None:
    """Mean of an attribute over the reports in which steps were made."""
    values = [v for p in points if p.rows_per_s > 0 and (v := q.known(getattr(p, name))) is not None]
    return fmean(values) if values else None


def _tile(name: str, value: str, more: str) -> str:
    return f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(more)}</small></div>'


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>' if body else '<p class="nothing">none</p>'
    return f'<section class="card wide"><h2>{escape(title)}</h2>{table}</section>'
