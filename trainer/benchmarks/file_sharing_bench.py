"""Ranks of one node that read a directory: each by itself, beside all from the one that decodes. Prints JSON lines.

`python trainer/benchmarks/file_sharing_bench.py [--rows N] [--repeats R] [--ranks 2]`. Every rank is a process that only
takes batches, as fast as it can; both sides over the same files from the page cache, in turn. CPU seconds are those
of all ranks together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import statistics
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Queue

import torch.distributed as dist
from rap_contract.job import RAPJobSpec
from rap_trainer.produce.directory import Directory, write_directory
from rap_trainer.produce.options import Produce
from rap_trainer.step.loop import IDLE_S
from rap_trainer.stream.files import FileSource, FileSourceOptions
from rap_trainer.stream.node_sharing import Sharing

STEP_ROWS = 8192


def main() -> None:
    """Runs every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    cases = [("criteo", Produce(rows=options.rows)), ("lists of 5", Produce(rows=options.rows // 4, mean_length=5.0))]
    with tempfile.TemporaryDirectory() as folder:
        for name, produce in cases:
            path = Path(folder) / name
            write_directory(produce, Directory(path=path, rows_per_file=options.rows // 4))
            _compare(name, path, options.ranks, options.repeats)


def _compare(name: str, path: Path, ranks: int, repeats: int) -> None:
    found: dict[str, list[tuple[int, float, float]]] = {"each rank decodes": [], "one rank decodes": []}
    for repeat in range(repeats + 1):
        for side, runs in found.items():
            run = _run(path, ranks, shared=side == "one rank decodes")
            if repeat:  # the first fills the page cache
                runs.append(run)
    for side, runs in found.items():
        line = {
            "benchmark": "file_sharing",
            "case": name,
            "side": side,
            "ranks": ranks,
            "rows_per_s": round(statistics.median(rows / seconds for rows, seconds, _ in runs)),
            "cpu_s": round(statistics.median(cpu_s for _, _, cpu_s in runs), 3),
            "spread_s": [round(min(seconds for _, seconds, _ in runs), 3), round(max(s for _, s, _ in runs), 3)],
        }
        print(json.dumps(line), flush=True)


def _run(path: Path, ranks: int, *, shared: bool) -> tuple[int, float, float]:
    """Rows of the directory, seconds until every rank had its share, CPU seconds of all."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(ranks), context.Queue()
    address = f"bench-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory() as folder:
        places = [Sharing(address=address, local_rank=rank, local_size=ranks) for rank in range(ranks)]
        processes = [
            context.Process(target=_rank, args=(path, place, shared, f"{folder}/store", barrier, results))
            for place in places
        ]
        for process in processes:
            process.start()
        answers = [results.get() for _ in processes]
        for process in processes:
            process.join()
    return sum(rows for rows, _, _ in answers), max(s for _, s, _ in answers), sum(cpu_s for _, _, cpu_s in answers)


def _rank(
    path: Path, place: Sharing, shared: bool, store: str, barrier: Barrier, results: Queue[tuple[int, float, float]]
) -> None:
    barrier.wait()
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    size = place.local_size
    source = FileSource(
        _job(path, STEP_ROWS // size),
        rank=place.local_rank,
        world_size=size,
        store=dist.FileStore(store, size),
        options=FileSourceOptions(sharing=place if shared else None),
    )
    rows = 0
    while True:
        offer = source.offer()
        shares = source.shares([offer.rows] * size, flush=offer.ended)
        if shares is not None:
            rows += source.take(shares).num_rows
        elif offer.ended:
            break
        else:
            time.sleep(IDLE_S)
    source.close()
    results.put((rows, time.perf_counter() - begin_s, time.process_time() - cpu_begin_s))


def _job(path: Path, batch_rows: int) -> RAPJobSpec:
    return RAPJobSpec.model_validate(
        {
            "source": {"files": {"path": str(path)}},
            "columns": {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "list<int64>"},
            "label": "label",
            "features": [{"columns": ["int_{0..12}"], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": batch_rows},
            "checkpoint": {"path": str(path / "unused")},
        }
    )


if __name__ == "__main__":
    main()
