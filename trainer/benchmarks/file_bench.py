"""Parquet to tensors beside bare pyarrow reading of the same columns. Prints JSON lines.

`python trainer/benchmarks/file_bench.py [--rows N] [--repeats R]`. The sides take turns over the same files from the page
cache, each kind in a process of its own: bare reading with pyarrow as it comes, bare reading with the setting of the
allocator that `rap run` makes (`arrow_memory.py`), and the source with it. Shares are those of the medians. On a machine that is
busy with other work the CPU share is the steadier one. Bare reading is Arrow's `iter_batches` with its usual threads,
in record batches as large as the source's own pieces and of three fixed sizes: the one of least time, and of least CPU,
counts, and beside it the share of pyarrow's own size, which a program has that names none. A stream has no end, so each file is there LINKS times under
as many names: beginning and end of a run, a tenth of a second, count for little.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from rap_contract.job import RAPJobSpec
from rap_trainer.produce.directory import Directory, write_directory
from rap_trainer.produce.options import Produce
from rap_trainer.step.loop import IDLE_S
from rap_trainer.stream.arrow_memory import KEPT
from rap_trainer.stream.files import FileSource
from rap_trainer.stream.parquet_file import MAX_PIECE_ROWS, ParquetEvents

LINKS = 3
OWN_ROWS = 65_536
"""pyarrow's own batch size."""
BARE_ROWS = (32_768, OWN_ROWS, MAX_PIECE_ROWS)
BATCH_ROWS = (4096, 16_384)
COLUMNS = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]


def main() -> None:
    """Runs every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, produce, integer in _cases(options.rows):
            path = Path(folder) / name
            directory = Directory(path=path, rows_per_file=options.rows // 4)
            write_directory(produce, directory)
            for file in sorted(path.glob("*.parquet")):
                for link in range(1, LINKS):
                    file.with_stem(f"{file.stem}-{link}").hardlink_to(file)
            _compare(name, path, integer, options.repeats)


def _cases(rows: int) -> list[tuple[str, Produce, str]]:
    return [
        ("criteo", Produce(rows=rows), "float32"),
        ("criteo, declared as written", Produce(rows=rows), "int32"),
        ("lists of 5", Produce(rows=rows // 4, mean_length=5.0), "float32"),
    ]


def _job(path: Path, integer: str, batch_rows: int = 4096) -> RAPJobSpec:
    return RAPJobSpec.model_validate(
        {
            "source": {"files": {"path": str(path)}},
            "columns": {"label": "int32", "int_{0..12}": integer, "cat_{0..25}": "list<int64>"},
            "label": "label",
            "features": [{"columns": ["int_{0..12}"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": batch_rows},
            "checkpoint": {"path": str(path / "unused")},
        }
    )


def _compare(name: str, path: Path, integer: str, repeats: int) -> None:
    sizes = (_piece_rows(path), *BARE_ROWS)
    bare: dict[str, Callable[[], int]] = {str(size): partial(_iter_batches, path, size) for size in sizes}
    ours: dict[str, Callable[[], int]] = {str(size): partial(_source, _job(path, integer, size)) for size in BATCH_ROWS}
    kinds = {
        "pyarrow iter_batches": _Process(bare, {}),
        "pyarrow iter_batches, memory kept": _Process(bare, KEPT),
        "rap FileSource, batch": _Process(ours, KEPT),
    }
    runs: dict[tuple[str, str], list[_Run]] = {(kind, side): [] for kind, of in kinds.items() for side in of.sides}
    for repeat in range(repeats + 1):
        for kind, side in runs:
            run = kinds[kind].run(side)
            if repeat:  # the first fills the page cache
                runs[kind, side].append(run)
    for process in kinds.values():
        process.end()
    medians = {at: tuple(map(statistics.median, zip(*found, strict=True))) for at, found in runs.items()}
    least = {kind: [min(m[i] for (k, _), m in medians.items() if k == kind) for i in (1, 2)] for kind in kinds}
    (bare_s, bare_cpu_s), (kept_s, kept_cpu_s), _ = least.values()
    _, own_s, own_cpu_s = medians["pyarrow iter_batches", str(OWN_ROWS)]
    for (kind, side), (rows, median_s, cpu_s) in medians.items():
        line = {
            "benchmark": "file_source",
            "case": name,
            "side": f"{kind} {side}",
            "rows": rows,
            "rows_per_s": round(rows / median_s),
            "share_of_bare": round(bare_s / median_s, 3),
            "cpu_share_of_bare": round(bare_cpu_s / cpu_s, 3),
            "share_of_bare_own_size": round(own_s / median_s, 3),
            "cpu_share_of_bare_own_size": round(own_cpu_s / cpu_s, 3),
            "share_of_bare_memory_kept": round(kept_s / median_s, 3),
            "cpu_share_of_bare_memory_kept": round(kept_cpu_s / cpu_s, 3),
            "spread_s": [round(edge(seconds for _, seconds, _ in runs[kind, side]), 3) for edge in (min, max)],
            "threads": pa.cpu_count(),
        }
        print(json.dumps(line), flush=True)


_Run = tuple[int, float, float]
"""Rows, seconds, CPU seconds."""


class _Process:
    """Runs sides by name in a process with more in its environment."""

    def __init__(self, sides: Mapping[str, Callable[[], int]], environment: Mapping[str, str]) -> None:
        self.sides = sides
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(sides, there))
        with patch.dict(os.environ, environment):
            self._process.start()

    def run(self, side: str) -> _Run:
        self._here.send(side)
        run: _Run = self._here.recv()
        return run

    def end(self) -> None:
        self._here.send(None)
        self._process.join()


def _serve(sides: Mapping[str, Callable[[], int]], there: Connection) -> None:
    while (side := there.recv()) is not None:
        begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
        rows = sides[side]()
        there.send((rows, time.perf_counter() - begin_s, time.process_time() - cpu_begin_s))


def _piece_rows(path: Path) -> int:
    """Of the source's pieces."""
    file = ParquetEvents(next(iter(sorted(path.glob("*.parquet")))))
    try:
        return next(file.pieces(COLUMNS, 0)).num_rows
    finally:
        file.close()


def _iter_batches(path: Path, rows_at_once: int) -> int:
    rows = 0
    for file in sorted(path.glob("*.parquet")):
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(rows_at_once, columns=COLUMNS):
                rows += batch.num_rows
    return rows


def _source(job: RAPJobSpec) -> int:
    source = FileSource(job)
    rows = 0
    try:
        while True:
            offer = source.offer()
            shares = source.shares([offer.rows], flush=offer.ended)
            if shares is not None:
                rows += source.take(shares).num_rows
            elif offer.ended:
                return rows
            else:
                time.sleep(IDLE_S)
    finally:
        source.close()


if __name__ == "__main__":
    main()
