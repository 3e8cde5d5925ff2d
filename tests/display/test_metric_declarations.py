"""The declared metrics: frozen, and in Prometheus' conventions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rap_contract import metrics
from rap_contract.metrics import Kind, Metric

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.json"
EVERY = [*metrics.TRAINER, *metrics.OPERATOR]
BASE_UNITS = {"seconds", "bytes", "ratio"}
SCALED_UNITS = ("_ms", "_us", "_milliseconds", "_minutes", "_hours", "_kb", "_mb", "_gb", "_mib", "_gib", "_percent")


def test_every_metric_is_frozen_by_the_golden_file() -> None:
    assert json.loads(json.dumps(metrics.as_data())) == json.loads(GOLDEN.read_text()), (
        "a metric changed, which breaks dashboards and alerts; if that is meant, say so in CHANGELOG.md and run: "
        'PYTHONPATH=operator python -c "import json; from rap_contract import metrics; '
        'print(json.dumps(metrics.as_data(), indent=1))" > tests/golden/metrics.json'
    )


def test_names_are_unique() -> None:
    assert len({metric.name for metric in EVERY}) == len(EVERY)


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_metric_follows_the_conventions_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"rap(_[a-z][a-z0-9]*)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert not metric.name.removesuffix("_total").endswith(SCALED_UNITS)
    assert not metric.name.endswith(("_count", "_sum", "_bucket"))
    if metric.unit in BASE_UNITS - {"ratio"}:
        assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
    assert metric.help.endswith((".", ": 1.")), "the help is a sentence"
    assert 10 < len(metric.help) < 120
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) and label not in {"le", "quantile"} for label in metric.labels)
    assert len(set(metric.labels)) == len(metric.labels) <= 5


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_only_histograms_have_buckets_and_they_ascend(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_planes_share_no_metric() -> None:
    assert all(metric.name.startswith("rap_operator_") for metric in metrics.OPERATOR)
    assert not any(metric.name.startswith("rap_operator_") for metric in metrics.TRAINER)


def test_no_other_place_names_a_metric() -> None:
    root = Path(__file__).parents[2]
    named = re.compile("|".join(rf"\b{metric.name}\b" for metric in EVERY))
    sources = [
        path for folder in ("operator", "trainer/rap_trainer", "charts") for path in (root / folder).rglob("*.py")
    ]
    assert len(sources) > 100
    places = [str(path.relative_to(root)) for path in sources if named.search(path.read_text())]
    assert places == ["operator/rap_contract/metrics.py"]
