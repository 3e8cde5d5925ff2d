"""The reference of all metrics as Markdown, from their declarations: `python -m rap_contract.metrics_document`.

docs/metrics.md is its output; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterable

from rap_contract.metrics import OPERATOR, TRAINER, Metric

INTRODUCTION = """\
# Metrics

Made by `PYTHONPATH=operator python -m rap_contract.metrics_document > docs/metrics.md`; edit `rap_contract/metrics.py`,
not this page.

Each rank of a trainer serves its own on `spec.trainer.metricsPort` plus its number on the node; gauges of the whole
job are on rank 0. The operator serves its own on `--metrics-port`. No label holds a feature, a row or a time, so the
number of series of a job stays bounded. With the chart's PodMonitor every series of a trainer also has `namespace`,
`pod` and `rapjob`.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_section("Trainer", TRAINER), "", *_section("Operator", OPERATOR), ""])


def _section(title: str, metrics: Iterable[Metric]) -> list[str]:
    rows = [f"| `{metric.name}` | {metric.kind} | {_labels(metric)} | {metric.help} |" for metric in metrics]
    return [f"## {title}", "", "| metric | type | labels | |", "|---|---|---|---|", *rows]


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels)


if __name__ == "__main__":
    print(document(), end="")
