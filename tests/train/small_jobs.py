"""A job small enough to train in a second, and files for it with something to learn."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rap_contract.job import RAPJob
from rap_contract.validation import check_job

NUM_DENSE, NUM_SPARSE = 3, 3


def document(folder: Path, **changes: Any) -> dict[str, Any]:
    """The job as a document; `changes` are keys below `spec`, joined by two underscores: `trainer__maxSteps=5`."""
    spec: dict[str, Any] = {
        "source": {"files": {"path": str(folder / "events")}},
        "columns": {"label": "int32", "int_{0..2}": "float32", "cat_{0..2}": "list<int64>"},
        "label": "label",
        "features": [
            {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0}}]},
            {
                "columns": ["cat_{0..2}"],
                "ops": [{"positiveModulus": {"modulus": 40}}],
                "table": {"rows": 40, "dim": 8},
            },
        ],
        "model": {"dlrm": {"bottom": [16, 8], "top": [16, 1]}},
        "optimizer": {"dense": {"adagrad": {"lr": 0.02}}, "embedding": {"rowwiseAdagrad": {"lr": 0.1}}},
        "trainer": {"batchSizePerGpu": 16, "metricsPort": 0, "maxWaitMs": 600_000},
        "checkpoint": {"path": str(folder / "checkpoints"), "intervalSeconds": 3600},
        "restartPolicy": {"delaySeconds": 0},
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        node = spec
        for parent in parents:
            node = node.setdefault(parent, {})
        node[key] = value
    metadata = {"name": "small"}
    return {"apiVersion": "rap.dev/v1alpha1", "kind": "RAPJob", "metadata": metadata, "spec": copy.deepcopy(spec)}


def small_job(folder: Path, **changes: Any) -> RAPJob:
    """The job, checked."""
    return check_job(document(folder, **changes))


def write_job(folder: Path, **changes: Any) -> Path:
    """The job as a YAML file."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document(folder, **changes)))
    return path


def write_events(folder: Path, *, rows: int, files: int = 2, seed: int = 0, **columns: Any) -> None:
    """`rows` rows over `files` Parquet files; a row's label follows from its values. `columns` replace generated ones."""
    random = np.random.default_rng(seed)
    directory = folder / "events"
    directory.mkdir(parents=True, exist_ok=True)
    numbers = random.random((NUM_DENSE, rows)).astype("float32")
    ids = random.integers(0, 1000, (NUM_SPARSE, rows, 2))
    noise = random.random(rows) * 0.4
    labels = (numbers[0] + (ids[0, :, 0] % 7) / 7 + noise > 1.2).astype("int32")
    table = {"label": pa.array(labels)}
    table |= {f"int_{i}": pa.array(numbers[i]) for i in range(NUM_DENSE)}
    table |= {f"cat_{i}": pa.array(list(ids[i]), type=pa.list_(pa.int64())) for i in range(NUM_SPARSE)}
    table |= columns
    whole = pa.table(table)
    for index in range(files):
        first, last = index * rows // files, (index + 1) * rows // files
        pq.write_table(whole.slice(first, last - first), directory / f"part-{index:03d}.parquet")
