"""Every alert fires on what it is for and stays silent beside it: promtool runs the rules over made-up series."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from rap_contract import metrics

ROOT = Path(__file__).parents[2]
RULES_FILE = ROOT / "charts" / "rap" / "files" / "alerts.yaml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]}
JOB = {"namespace": "ads", "rapjob": "clicks"}
_JOB = 'namespace="ads", rapjob="clicks"'


@dataclass(frozen=True)
class Case:
    """Series a minute apart, and whether the alert fires at the end of `minutes`."""

    alert: str
    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str]
    minutes: int = 40


def _freshness(bucket_s: int) -> dict[str, str]:
    """100 rows a minute, all in one bucket."""
    name = metrics.FRESHNESS_SECONDS.name
    return {
        f'{name}_bucket{{{_JOB}, le="{bound}"}}': "0+100x60" if float(bound) >= bucket_s else "0x60"
        for bound in ("512", "1024", "2048", "+Inf")
    }


def _condition(kind: str, value: int) -> dict[str, str]:
    return {f'{metrics.JOB_CONDITION.name}{{{_JOB}, type="{kind}"}}': f"{value}x60"}


def _of_job(metric: metrics.Metric, values: str, extra: str = "") -> dict[str, str]:
    return {f"{metric.name}{{{_JOB}{extra}}}": values}


def _of_operator(metric: metrics.Metric, values: str, labels: str = "") -> dict[str, str]:
    return {f"{metric.name}{{{labels}}}": values}


CASES = (
    Case("RAPJobStale", _freshness(2048), _freshness(512), JOB),
    Case("RAPJobStalled", _condition("Stalled", 1), _condition("Stalled", 0) | _condition("Running", 1), JOB),
    Case("RAPJobFailed", _condition("Failed", 1), _condition("Failed", 0), JOB),
    Case(
        "RAPJobRestartLoop",
        _of_job(metrics.ATTEMPT, "1x20 2x5 3x5 4x5 5x10"),
        _of_job(metrics.ATTEMPT, "1x20 2x20 3x20"),
        JOB,
    ),
    Case(
        "RAPCheckpointOld",
        _of_job(metrics.CHECKPOINT_AGE_SECONDS, "0+120x60"),
        _of_job(metrics.CHECKPOINT_AGE_SECONDS, "0+60x60"),
        JOB,
    ),
    Case(
        "RAPBadRecordsNearBudget",
        _of_job(metrics.BAD_RECORDS_RATIO, "0.006x60") | _of_job(metrics.ERROR_BUDGET_RATIO, "0.01x60"),
        _of_job(metrics.BAD_RECORDS_RATIO, "0.004x60") | _of_job(metrics.ERROR_BUDGET_RATIO, "0.01x60"),
        JOB,
    ),
    Case(
        "RAPDeadLettersNotWritten",
        _of_job(metrics.DEAD_LETTER_FAILURES, "0+1x60"),
        _of_job(metrics.DEAD_LETTER_FAILURES, "7x60"),
        JOB,
    ),
    Case("RAPRecordsLost", _of_job(metrics.LOST_RECORDS, "0+9x60"), _of_job(metrics.LOST_RECORDS, "9x60"), JOB),
    Case(
        "RAPPreprocessingExposed",
        _of_job(metrics.EXPOSED_RATIO, "0.2x60", ', pod="a"') | _of_job(metrics.EXPOSED_RATIO, "0.1x60", ', pod="b"'),
        _of_job(metrics.EXPOSED_RATIO, "0.2x60", ', pod="a"') | _of_job(metrics.EXPOSED_RATIO, "0x60", ', pod="b"'),
        JOB,
    ),
    Case(
        "RAPModelDiverged",
        _of_job(metrics.DIVERGENCES, "0x30 1x30", ', reason="nan"'),
        _of_job(metrics.DIVERGENCES, "1x60", ', reason="nan"'),
        JOB | {"reason": "nan"},
    ),
    Case("RAPOperatorDown", {}, _of_operator(metrics.OPERATOR_INFO, "1x60", 'version="1"'), {}),
    Case(
        "RAPOperatorNoLeader",
        _of_operator(metrics.LEADER, "0x60", 'pod="a"') | _of_operator(metrics.LEADER, "0x60", 'pod="b"'),
        _of_operator(metrics.LEADER, "1x60", 'pod="a"') | _of_operator(metrics.LEADER, "0x60", 'pod="b"'),
        {},
    ),
    Case(
        "RAPOperatorLeaderFlaps",
        _of_operator(metrics.LEADER_CHANGES, "0+1x60", 'pod="a"'),
        _of_operator(metrics.LEADER_CHANGES, "0x30 1x30", 'pod="a"'),
        {},
    ),
    Case(
        "RAPOperatorWatchStuck",
        _of_operator(metrics.WATCH_IDLE_SECONDS, "0+60x60", 'resource="pods"'),
        _of_operator(metrics.WATCH_IDLE_SECONDS, "70x60", 'resource="pods"'),
        {"resource": "pods"},
    ),
    Case(
        "RAPOperatorReconcileErrors",
        _of_operator(metrics.RECONCILE_ERRORS, "0+60x60", 'reason="Conflict"'),
        _of_operator(metrics.RECONCILE_ERRORS, "0+1x60", 'reason="Conflict"'),
        {"reason": "Conflict"},
    ),
    Case(
        "RAPOperatorQueueLong",
        _of_operator(metrics.QUEUE_DEPTH, "200x60"),
        _of_operator(metrics.QUEUE_DEPTH, "90x60"),
        {},
    ),
    Case(
        "RAPReplanReverted",
        _of_operator(metrics.REPLANS, "0x30 1x30", 'outcome="Reverted", reason="Slower"'),
        _of_operator(metrics.REPLANS, "0+1x60", 'outcome="Switched", reason="Drift"'),
        {"reason": "Slower"},
    ),
)


def _check(case: Case, series: dict[str, str], *, fires: bool, folder: Path, promtool: Path) -> None:
    """Raises AssertionError with promtool's words if the alert does otherwise at the end."""
    labels = {"alertname": case.alert, "alertstate": "firing", **case.labels, **RULES[case.alert]["labels"]}
    alert = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    document: dict[str, Any] = {
        "rule_files": [str(RULES_FILE)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'ALERTS{{alertname="{case.alert}", alertstate="firing"}}',
                        "eval_time": f"{case.minutes}m",
                        "exp_samples": [{"labels": f"ALERTS{{{alert}}}", "value": 1}] if fires else [],
                    }
                ],
            }
        ],
    }
    file = folder / f"{case.alert}.yaml"
    file.write_text(json.dumps(document))
    ran = subprocess.run([str(promtool), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_on_its_trouble_and_is_silent_beside_it(
    case: Case, tmp_path: Path, prometheus_binaries: Path
) -> None:
    promtool = prometheus_binaries / "promtool"
    _check(case, case.fires, fires=True, folder=tmp_path, promtool=promtool)
    _check(case, case.silent, fires=False, folder=tmp_path, promtool=promtool)


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == RULES.keys()


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_asks_declared_metrics_and_leads_to_its_runbook(alert: str) -> None:
    rule = RULES[alert]
    declared = {metric.name for metric in (*metrics.TRAINER, *metrics.OPERATOR)}
    asked = {name.removesuffix("_bucket") for name in re.findall(r"\brap_\w+", rule["expr"])}
    assert asked
    assert asked <= declared
    assert rule["labels"]["severity"] in {"warning", "critical"}
    page, anchor = rule["annotations"]["runbook_url"].split("/#")
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
