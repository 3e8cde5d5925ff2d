"""A job for one GPU whose captured steps are long, the producer of its files, and somebody else who works on that GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_LISTS, LENGTH = 8, 6
BATCH, ROWS, EVERY_S = 16_384, 65_536, 0.15
"""Rows of a step and of a file, and the time between two files: less than an H200 trains meanwhile."""
ROOTS = tuple(str(Path(__file__).resolve().parents[2] / name) for name in ("operator", "trainer", "tests"))
WORK = """
import torch
side = torch.randn(8192, 8192, device="cuda")
input()
while True:
    for _ in range(16):
        torch.mm(side, side)
    torch.cuda.synchronize()
"""
"""Matrices multiplied by another process: the GPU gives both of them their share of time."""


def document(folder: Path, *, port: int) -> dict[str, Any]:
    """Steps of more than 10 ms on an H200: the top MLP takes nearly all of them."""
    lists = [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 1}}, {"firstx": {"count": 40}}]
    spec: dict[str, Any] = {
        "source": {"files": {"path": str(folder / "events"), "follow": True}},
        "columns": {"label": "int32", "int_{0..3}": "float32", f"ids_{{0..{NUM_LISTS - 1}}}": "list<int64>"},
        "label": "label",
        "features": [
            {"columns": ["int_{0..3}"], "ops": [{"fillNull": {"value": 0}}]},
            {"columns": [f"ids_{{0..{NUM_LISTS - 1}}}"], "ops": lists, "table": {"rows": 100_000, "dim": 64}},
        ],
        "model": {"dlrm": {"bottom": [256, 64], "top": [8192, 8192, 1024, 1]}},
        "optimizer": {"dense": {"sgd": {"lr": 1e-4}}, "embedding": {"rowwiseAdagrad": {"lr": 0.01}}},
        "trainer": {"gpusPerNode": 1, "batchSizePerGpu": BATCH, "metricsPort": port, "runtime": "captured"},
        "checkpoint": {"path": str(folder / "checkpoints"), "intervalSeconds": 3600},
        "replanning": {"windowSeconds": 2, "minIntervalSeconds": 1, "triggers": {"predictionRatio": 0.3}},
    }
    return {"apiVersion": "rap.dev/v1alpha1", "kind": "RAPJob", "metadata": {"name": "long-steps"}, "spec": spec}


class Files:
    """One file under ever new names."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._one = folder / "events", folder / "one.parquet"
        self._folder.mkdir(parents=True)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        random = np.random.default_rng(0)
        table = {"label": pa.array(random.integers(0, 2, ROWS).astype("int32"))}
        table |= {f"int_{i}": pa.array(random.random(ROWS).astype("float32")) for i in range(4)}
        offsets = pa.array(np.arange(ROWS + 1, dtype="int32") * LENGTH)
        for i in range(NUM_LISTS):
            ids = pa.array(random.integers(0, 1 << 40, ROWS * LENGTH))
            table[f"ids_{i}"] = pa.ListArray.from_arrays(offsets, ids)
        pq.write_table(pa.table(table), self._one, compression="none", use_dictionary=False)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(EVERY_S):
            number += 1
            os.link(self._one, self._folder / f"part-{number:06d}.parquet")


def command(*words: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """`rap` with these words, and its environment."""
    paths = os.pathsep.join([*ROOTS, os.environ.get("PYTHONPATH", "")])
    return [sys.executable, "-m", "rap_trainer.cli", *words], {**os.environ, "PYTHONPATH": paths, **variables}


@contextmanager
def neighbour() -> Iterator[subprocess.Popen[str]]:
    """Another process that keeps the GPU busy from the first line it is told."""
    with subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
