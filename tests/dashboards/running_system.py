"""A trainer that trains on a damaged stream and an operator with jobs that fail, for boards to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boards.panels import RATE_INTERVAL
from dashboards.prometheus_server import PrometheusServer
from operator_world.on_server import ROOT, OnServer, script_job
from rap_contract.pod import ENV_PLAN_FILE
from servers.processes import free_port, spawn

NAMESPACE, RAPJOB = "ads", "clicks"
JOB = """\
apiVersion: rap.dev/v1alpha1
kind: RAPJob
metadata: {{name: clicks, namespace: ads}}
spec:
  source:
    files: {{path: events, format: parquet, follow: true, eventTime: {{column: ts}}, errorBudget: {{ratio: 0.2}}}}
  columns: {{label: int32, "int_{{0..12}}": float32, "cat_{{0..25}}": list<int64>}}
  label: label
  features:
  - {{columns: ["int_{{0..12}}"], ops: [{{fillNull: {{value: 0}}}}, {{logit: {{eps: 1.0e-5}}}}]}}
  - columns: ["cat_{{0..25}}"]
    ops: [{{fillNull: {{value: 0}}}}, {{sigridHash: {{salt: 0}}}}, {{firstx: {{count: 4}}}}]
    table: {{rows: 5000, dim: 16}}
  model: {{dlrm: {{bottom: [64, 32, 16], top: [64, 32, 1]}}}}
  trainer: {{processesPerNode: 2, batchSizePerGpu: 128, metricsPort: {port}}}
  checkpoint: {{path: checkpoints, intervalSeconds: 4, keep: 2}}
  evaluation: {{windowRows: 20000}}
"""
_PLACES = {
    "$namespace": NAMESPACE,
    "$rapjob": RAPJOB,
    RATE_INTERVAL: "15s",
    "$__range": "1m",
}


_SIGNS = (
    "min(rap_step) > 50",
    "sum(rap_bad_records_total) > 20",
    "sum(rap_checkpoints_total) >= 2",
    "count(rap_checkpoint_age_seconds) > 0",
    'rap_operator_job_condition{type="Failed"} == 1',
    "sum(increase(rap_steps_total[15s])) > 0",
    "histogram_quantile(0.5, sum by (le) (rate(rap_checkpoint_seconds_bucket[15s]))) > 0",
)
"""When all are true, there is something on every panel."""


def has_shown_itself(server: PrometheusServer) -> bool:
    """Whether the trainer trained, met bad records and wrote checkpoints, and a job failed under the operator."""
    return all(server.instant(sign) for sign in _SIGNS)


def filled_in(expr: str) -> str:
    """A board's query as Grafana sends it."""
    for place, value in _PLACES.items():
        expr = expr.replace(place, value)
    return expr


@contextmanager
def trainer(folder: Path) -> Iterator[int]:
    """Two ranks on a stream with 2 % bad records whose lists grow; gives the first rank's metrics port."""
    port = next(port for port in iter(free_port, None) if port + 1 < 32_000)
    (folder / "job.yaml").write_text(JOB.format(port=port))
    rap = ["env", "-C", str(folder), sys.executable, "-m", "rap_trainer.cli"]
    source = [
        *("--format", "parquet", "--rate", "1500", "--rows-per-file", "1500"),
        *("--bad-ratio", "0.02", "--mean-length", "3", "--length-drift", "20"),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
        "OMP_NUM_THREADS": "1",
        ENV_PLAN_FILE: "plan.json",
    }
    planned = subprocess.run([*rap, "plan", "job.yaml", "--json"], env=environment, capture_output=True, check=True)
    (folder / "plan.json").write_bytes(planned.stdout)
    producing = spawn(
        [*rap, "produce", "--out", "events", *source],
        log_path=folder / "produce.log",
        environment=environment,
    )
    training = spawn([*rap, "run", "job.yaml", "--plain"], log_path=folder / "run.log", environment=environment)
    try:
        yield port
    finally:
        for process in (producing, training):
            process.terminate()
        for process in (producing, training):
            process.wait(60)


def operate(on_server: OnServer, folder: Path, port: int) -> None:
    """An operator that serves metrics on `port`, a job that waits, one that fails for good and one again and again."""
    on_server.operator_process("--scrape-interval-seconds", "1", "--lease-namespace", on_server.namespace,
                               "--metrics-port", str(port), log=folder / "operator.log")  # fmt: skip
    waits = script_job("trap 'exit 143' TERM; while :; do sleep 0.05; done")
    fails = script_job("exit 1", restartPolicy={"delaySeconds": 0, "maxRestarts": 2})
    fails["metadata"]["name"] = "fails"
    flaps = script_job("exit 1", restartPolicy={"delaySeconds": 1, "maxDelaySeconds": 1, "maxRestarts": 1000})
    flaps["metadata"]["name"] = "flaps"
    for job in (waits, fails, flaps):
        on_server.create(job)
