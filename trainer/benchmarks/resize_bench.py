"""A run through 2, 4, 8 and 4 ranks by its checkpoints, beside one on the first number throughout. Prints JSON lines.

    python trainer/benchmarks/resize_bench.py [--ranks 2 4 8 4] [--rows 200000]

One rank a GPU, or gloo on a machine without. A line for each start of the ranks says how long it took; the last says how
far the final models are apart: `largest_difference`, absolute, over all tensors of the two last checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed.checkpoint as dcp
import yaml
from rap_trainer.checkpoint.layout import checkpoints
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

BATCH = 1024  # rows of all ranks together
NUM_DENSE, NUM_SPARSE, TABLE_ROWS = 4, 4, 10_000


def write_events(folder: Path, rows: int) -> None:
    """Rows with something to learn, in eight files."""
    folder.mkdir()
    random = np.random.default_rng(0)
    numbers = random.random((NUM_DENSE, rows)).astype("float32")
    ids = random.integers(0, TABLE_ROWS, (NUM_SPARSE, rows))
    labels = (numbers[0] + (ids[0] % 7) / 7 + random.random(rows) * 0.4 > 1.2).astype("int32")
    columns = {"label": labels} | {f"int_{i}": numbers[i] for i in range(NUM_DENSE)}
    table = pa.table(columns | {f"cat_{i}": ids[i] for i in range(NUM_SPARSE)})
    for index in range(8):
        first, last = index * rows // 8, (index + 1) * rows // 8
        pq.write_table(table.slice(first, last - first), folder / f"part-{index}.parquet")


def job(events: Path, saved: Path, *, ranks: int, last_step: int | None) -> dict[str, Any]:
    """The job for so many ranks."""
    where = "gpusPerNode" if torch.cuda.is_available() else "processesPerNode"
    trainer: dict[str, Any] = {"batchSizePerGpu": BATCH // ranks, where: ranks, "metricsPort": 0}
    trainer |= {"precision": "fp32"} | ({} if last_step is None else {"maxSteps": last_step})
    modulus = {"positiveModulus": {"modulus": TABLE_ROWS}}
    spec = {
        "source": {"files": {"path": str(events)}},
        "columns": {"label": "int32", "int_{0..3}": "float32", "cat_{0..3}": "int64"},
        "label": "label",
        "features": [
            {"columns": ["int_{0..3}"], "ops": [{"fillNull": {"value": 0}}]},
            {"columns": ["cat_{0..3}"], "ops": [modulus], "table": {"rows": TABLE_ROWS, "dim": 16}},
        ],
        "model": {"dlrm": {"bottom": [64, 16], "top": [64, 1]}},
        "optimizer": {"dense": {"sgd": {"lr": 0.1}}, "embedding": {"sgd": {"lr": 0.1}}},
        "trainer": trainer,
        "checkpoint": {"path": str(saved), "intervalSeconds": 3600},
    }
    return {"apiVersion": "rap.dev/v1alpha1", "kind": "RAPJob", "metadata": {"name": "resize"}, "spec": spec}


def train(folder: Path, document: dict[str, Any]) -> float:
    """Seconds of one `rap run` to its end. Raises CalledProcessError."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    began = time.monotonic()
    command = [sys.executable, "-m", "rap_trainer.cli", "run", str(path), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"OMP_NUM_THREADS": "1", **os.environ})
    return time.monotonic() - began


def tensors(saved: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint."""
    reader = dcp.FileSystemReader(checkpoints(saved)[0])
    entries = reader.read_metadata().state_dict_metadata
    found = {
        name: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def main() -> None:
    """Both runs and what they differ by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 4])
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args()
    gpus = torch.cuda.device_count()
    ranks = [number if not gpus else min(number, gpus) for number in options.ranks]
    steps = -(-options.rows // BATCH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_events(folder / "events", options.rows)
        whole, resized = folder / "whole", folder / "resized"
        for index, number in enumerate(ranks):
            last = None if index == len(ranks) - 1 else (index + 1) * steps // len(ranks)
            seconds = train(folder, job(folder / "events", resized, ranks=number, last_step=last))
            emit(run="resized", ranks=number, last_step=last or steps, seconds=round(seconds, 1))
        seconds = train(folder, job(folder / "events", whole, ranks=ranks[0], last_step=None))
        emit(run="whole", ranks=ranks[0], last_step=steps, seconds=round(seconds, 1))
        left, right = tensors(whole), tensors(resized)
        if left.keys() != right.keys():
            raise ValueError(f"the models differ in {sorted(left.keys() ^ right.keys())}")
        largest = max(
            (float((left[key].double() - right[key].double()).abs().max()), key) for key in left if left[key].numel()
        )
    emit(run="comparison", steps=steps, tensors=len(left), largest_difference=largest[0], of=largest[1])


def emit(**line: Any) -> None:
    """One JSON line."""
    print(json.dumps({"bench": "resize", "device": "cuda" if torch.cuda.is_available() else "cpu", **line}), flush=True)


if __name__ == "__main__":
    main()
