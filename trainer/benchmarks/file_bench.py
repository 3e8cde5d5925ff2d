"""Parquet to tensors beside bare pyarrow reading of the same columns. Prints JSON lines.

`python trainer/benchmarks/file_bench.py [--rows N] [--repeats R]`. All sides run in one process, in
turn, over the same files from the page cache; shares are those of the medians. On a machine that is
busy with other work the CPU share is the steadier one. Bare reading is Arrow's `iter_batches` with its usual threads,
in record batches as large as the source's own pieces, of Arrow's default of 65,536 rows, or of 262,144: the
one of least time, and of least CPU, counts. A stream has no end, so each file is there LINKS times under
as many names: beginning and end of a run, a tenth of a second, count for little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rap_contract.job import RAPJobSpec
from rap_trainer.produce.directory import Directory, write_directory
from rap_trainer.produce.options import Produce
from rap_trainer.step.loop import IDLE_S
from rap_trainer.stream.files import FileSource
from rap_trainer.stream.parquet_file import MAX_PIECE_ROWS, ParquetEvents

LINKS = 3
DEFAULT_ROWS = 65_536  # pyarrow's own batch size
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
    small, large, piece_rows = _job(path, integer), _job(path, integer, 16_384), _piece_rows(path)
    bare = {f"pyarrow iter_batches of {size}": size for size in (piece_rows, DEFAULT_ROWS, MAX_PIECE_ROWS)}
    sides: dict[str, Callable[[], int]] = {
        **{side: partial(_iter_batches, path, size) for side, size in bare.items()},
        "rap FileSource, batch 4096": lambda: _source(small),
        "rap FileSource, batch 16384": lambda: _source(large),
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cpu_seconds: dict[str, list[float]] = {side: [] for side in sides}
    rows = 0
    for repeat in range(repeats + 1):
        for side, read in sides.items():
            begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
            rows = read()
            if repeat:  # the first fills the page cache
                seconds[side].append(time.perf_counter() - begin_s)
                cpu_seconds[side].append(time.process_time() - cpu_begin_s)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    cpu_medians = {side: statistics.median(values) for side, values in cpu_seconds.items()}
    bare_s, bare_cpu_s = min(medians[side] for side in bare), min(cpu_medians[side] for side in bare)
    for side, median_s in medians.items():
        line = {
            "benchmark": "file_source",
            "case": name,
            "side": side,
            "rows": rows,
            "rows_per_s": round(rows / median_s),
            "share_of_bare": round(bare_s / median_s, 3),
            "cpu_share_of_bare": round(bare_cpu_s / cpu_medians[side], 3),
            "spread_s": [round(min(seconds[side]), 3), round(max(seconds[side]), 3)],
            "threads": pa.cpu_count(),
        }
        print(json.dumps(line), flush=True)


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
