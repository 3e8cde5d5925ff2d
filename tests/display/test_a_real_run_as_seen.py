"""A job is trained in two attempts; everything a person may look at tells the same story."""

from __future__ import annotations

import io
import json
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rap_contract import metrics
from rap_trainer.display import (
    Display,
    Event,
    Gauges,
    History,
    MetricsServer,
    MetricStore,
    Outcome,
    Progress,
    Report,
    Run,
    terminal,
)
from rap_trainer.train import train
from servers.processes import free_port
from train.small_jobs import small_job, write_events

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")
ROWS, BATCH, FIRST_STEPS = 330, 16, 9
STEPS = -(-ROWS // BATCH)
Values = dict[tuple[str, tuple[str, ...]], float]


@dataclass
class Scraper:
    """A sink that scrapes the rank's metrics when the attempt is over, as Prometheus would a moment earlier."""

    port: int
    values: Values = field(default_factory=dict)

    def start(self, run: Run) -> None: ...

    def update(self, progress: Progress) -> None: ...

    def event(self, event: Event) -> None: ...

    def finish(self, outcome: Outcome) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            self.values |= {(s.name, tuple(s.labels.values())): s.value for s in family.samples}


@dataclass(frozen=True)
class Seen:
    """What was shown of an attempt."""

    lines: list[dict[str, object]]
    scraped: Values
    history: History
    page: str


def attempt(folder: Path, max_steps: int | None) -> Seen:
    port = free_port()
    stream, store, scraper = io.StringIO(), MetricStore(metrics.TRAINER), Scraper(port)
    history = History(folder / "checkpoints" / "history.jsonl")
    report = Report(history, folder / "checkpoints" / "report.html")
    sinks = [terminal(stream, "json"), Gauges(store, rank=0, version="1"), history, report, scraper]
    server = MetricsServer(store, port=port, address="127.0.0.1")
    try:
        train(small_job(folder, trainer__maxSteps=max_steps), display=Display(sinks), store=store)
    finally:
        server.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return Seen(lines, scraper.values, history, report.path.read_text())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    """Two attempts of one job, with a report after every step."""
    folder = tmp_path_factory.mktemp("seen")
    write_events(folder, rows=ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rap_trainer.step.loop.REPORT_EVERY_S", 0.0)
        return [attempt(folder, FIRST_STEPS), attempt(folder, None)]


def test_only_declared_metrics_are_exposed(seen: list[Seen]) -> None:
    declared = {metric.name for metric in metrics.TRAINER}
    for name, _ in seen[1].scraped:
        base = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        assert {name, base} & declared, name


def test_counters_count_the_attempt_and_gauges_the_job(seen: list[Seen]) -> None:
    first, second = (attempt.scraped for attempt in seen)
    assert first[(metrics.STEPS.name, ())] == FIRST_STEPS
    assert second[(metrics.STEPS.name, ())] == STEPS - FIRST_STEPS
    assert first[(metrics.ROWS_TRAINED.name, ())] + second[(metrics.ROWS_TRAINED.name, ())] == ROWS
    assert second[(metrics.STEP.name, ())] == STEPS
    assert second[(metrics.ATTEMPT.name, ())] == 2
    assert second[(f"{metrics.STEP_SECONDS.name}_count", ())] > 0
    parts = {labels[0] for name, labels in second if name == metrics.STEP_PART_SECONDS.name}
    assert {"data", "preprocess", "forward", "backward", "update"} <= parts


def test_the_last_line_the_metrics_and_the_page_show_the_same_quality(seen: list[Seen]) -> None:
    outcome = seen[1].lines[-1]
    assert (outcome["type"], outcome["exit_code"]) == ("outcome", 0)
    last = outcome["last"]
    assert isinstance(last, dict)
    scraped = seen[1].scraped
    assert scraped[(metrics.NORMALIZED_ENTROPY.name, ("life",))] == last["life_normalized_entropy"]
    assert scraped[(metrics.AUC.name, ("window",))] == last["auc"]
    assert f"{last['normalized_entropy']:.4f}" in seen[1].page
    assert f"{last['auc']:.4f}" in seen[1].page


def test_quality_over_life_goes_on_through_a_resume(seen: list[Seen]) -> None:
    first = [line for line in seen[0].lines if line["type"] == "progress"][-1]
    second = [line for line in seen[1].lines if line["type"] == "progress"]
    assert first["step"] == FIRST_STEPS
    before, after = first["life_normalized_entropy"], second[0]["life_normalized_entropy"]
    assert isinstance(before, float)
    assert isinstance(after, float)
    assert abs(after - before) < 0.1, "one more batch does not overturn nine"
    assert second[-1]["rows"] == ROWS


def test_the_curve_has_every_step_of_both_attempts_once(seen: list[Seen]) -> None:
    story = seen[1].history.story
    steps = [point.step for point in story.points]
    assert steps == sorted(steps)
    assert set(range(2, STEPS + 1)) <= set(steps)
    assert [(run.attempt, run.resumed_step) for run in story.runs] == [(1, 0), (2, FIRST_STEPS)]
    assert "maxSteps is reached" in [event.text.split(" (")[0] for event in story.events if event.kind == "end"]


def test_the_end_names_the_report(seen: list[Seen]) -> None:
    assert str(seen[1].lines[-1]["report"]).endswith("checkpoints/report.html")
