"""What a run says of its data as metrics: list lengths, nulls and odd values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rap_contract import metrics
from rap_contract.pod import ExitCode
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.train import train
from train.small_jobs import small_job

ROWS = 64


def write(folder: Path) -> None:
    (folder / "events").mkdir()
    columns: dict[str, pa.Array] = {"label": pa.array([0, 1] * (ROWS // 2), pa.int32())}
    for i in range(3):
        columns[f"int_{i}"] = pa.array([None, 1.0, float("nan"), 2.0] * (ROWS // 4), pa.float32())
        columns[f"cat_{i}"] = pa.array([[1, 2, 3], [4]] * (ROWS // 2), pa.list_(pa.int64()))
    pq.write_table(pa.table(columns), folder / "events" / "part.parquet")


def value(store: MetricStore, metric: metrics.Metric, **labels: str) -> float:
    """The one sample of a metric with these labels."""
    samples = [sample for family in store.collect() for sample in family.samples]
    names = {metric.name, metric.name.removesuffix("_total") + "_total"}
    (found,) = [sample.value for sample in samples if sample.name in names and sample.labels == labels]
    return float(found)


def test_a_run_exports_list_lengths_null_shares_and_odd_values_of_its_data(tmp_path: Path) -> None:
    write(tmp_path)
    features = [
        {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0, "nan": True}}]},
        {"columns": ["cat_{0..2}"], "ops": [{"positiveModulus": {"modulus": 40}}], "table": {"rows": 40, "dim": 8}},
        {
            "name": "bucket",
            "columns": ["int_0"],
            "ops": [{"bucketize": {"borders": [1.5]}}],
            "table": {"rows": 2, "dim": 8},
        },
    ]
    store = MetricStore(metrics.TRAINER)
    ending = train(small_job(tmp_path, features=features), store=store)
    assert ending.code == ExitCode.DONE
    assert value(store, metrics.MEAN_LIST_LENGTH, group="cat_{0..2}") == pytest.approx(2.0)
    assert value(store, metrics.NULL_RATIO, group="int_{0..2}") == pytest.approx(0.25)
    assert value(store, metrics.ANOMALIES, kind="bucketize_nan") == ROWS // 4
