"""The eager ops on plan 1 against the same chains in pyarrow/numpy and in polars: one JSON line a side and batch.

    PYTHONPATH=operator:trainer python trainer/benchmarks/ops_bench.py [--threads 1] [--rows 4096 65536]

Every side starts from its own columns in memory with their nulls (lists of one id, as Criteo has them, are
plain numbers for the other two, in their favour) and ends with dense float32 [B, 13], all ids one after the
other, and their lengths. Repeats of the sides alternate, so that a busy machine slows all of them. Reported:
the least and the median wall time, and the least processor time of the whole process. numpy computes on one
thread whatever --threads says. Outputs are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

BORDERS, EPS, NUM_INTS, NUM_CATS = [0.5, 1.0, 1.5], 1e-5, 13, 26


def main() -> None:
    """Times all sides and prints their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(given.threads)  # read when polars is imported
    import torch
    from rap_trainer.program.host_memory import keep_freed_memory

    torch.set_num_threads(given.threads)
    keep_freed_memory()  # for all sides; it is what a job does
    for rows in given.rows:
        sides = sides_of(rows)
        compare(sides)
        for line in measure(sides, given.repeats):
            print(json.dumps({"bench": "ops", "plan": 1, "rows": rows, "threads": given.threads, **line}), flush=True)


def sides_of(rows: int) -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    """Functions that preprocess the same batch to (dense, ids, lengths)."""
    import torch
    from rap_contract.graph import compile_features
    from rap_contract.job import RAPJob
    from rap_trainer.plans import TERABYTE_ROWS, plan_job, synthetic_batch
    from rap_trainer.program import Program

    job = plan_job(1)
    graph, problems = compile_features(RAPJob.model_validate(job).spec)
    assert graph is not None, problems
    program = Program(graph)
    raw = synthetic_batch(job, rows)

    def eager() -> tuple[Any, Any, Any]:
        batch = program.run(raw)
        return batch.dense_BD, batch.sparse.values(), batch.sparse.lengths()

    with torch.inference_mode(False):
        arrays = {name: (c.values_N.numpy(), c.nulls_N) for name, c in raw.columns.items() if name != "label"}
    numbers = {name: (values, None if nulls is None else nulls.numpy()) for name, (values, nulls) in arrays.items()}
    sides = {"rap": eager, "numpy": numpy_side(numbers, TERABYTE_ROWS)}
    try:
        sides["polars"] = polars_side(numbers, TERABYTE_ROWS)
    except ImportError:
        print(json.dumps({"bench": "ops", "side": "polars", "error": "polars is not installed (group `bench`)"}))
    return sides


def numpy_side(columns: dict[str, Any], table_rows: tuple[int, ...]) -> Callable[[], tuple[Any, Any, Any]]:
    """pyarrow for nulls, numpy for arithmetic, a column at a time, in place where it can be."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    table = {name: pa.array(values, mask=nulls) for name, (values, nulls) in columns.items()}
    u = np.uint64
    multiplier = u(0x9DDFEA08EB382D69)

    def hashed(ids: Any, rows: int) -> Any:
        k = ids.view(u)
        k = (k << u(21)) - k - u(1)
        k ^= k >> u(24)
        k *= u(265)
        k ^= k >> u(14)
        k *= u(21)
        k ^= k >> u(28)
        k *= u(1 + 2**31)
        k *= multiplier
        k ^= k >> u(47)
        k *= multiplier
        k ^= k >> u(47)
        k *= multiplier
        return k.view(np.int64) % rows

    def run() -> tuple[Any, Any, Any]:
        dense = np.empty((len(table["int_0"]), NUM_INTS), dtype=np.float32)
        low, high = np.float32(EPS), np.float32(1 - EPS)
        for i in range(NUM_INTS):
            x = np.clip(pc.fill_null(table[f"int_{i}"], 0).to_numpy(), low, high)
            dense[:, i] = np.log(x / (1 - x))
        ids = [hashed(pc.fill_null(table[f"cat_{i}"], 0).to_numpy(), table_rows[i]) for i in range(NUM_CATS)]
        present = pc.drop_null(table["int_0"]).to_numpy()
        ids.append(np.searchsorted(np.array(BORDERS, dtype=np.float32), present))
        lengths = np.ones((NUM_CATS + 1, len(dense)), dtype=np.int32)
        lengths[NUM_CATS] = pc.is_valid(table["int_0"]).to_numpy(zero_copy_only=False)
        return dense, np.concatenate(ids), lengths.reshape(-1)

    return run


def polars_side(columns: dict[str, Any], table_rows: tuple[int, ...]) -> Callable[[], tuple[Any, Any, Any]]:
    """One `select` of expressions, on as many threads as polars was given."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    table = pa.table({name: pa.array(values, mask=nulls) for name, (values, nulls) in columns.items()})
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)

    def word(number: int) -> Any:
        return pl.lit(number, dtype=pl.UInt64)

    def shifted(k: Any, bits: int) -> Any:
        return k ^ (k // word(1 << bits))

    def hashed(name: str, rows: int) -> Any:
        k = pl.col(name).fill_null(0).cast(pl.UInt64, wrap_numerical=True)
        k = k * word(2**21 - 1) - word(1)
        for bits, factor in ((24, 265), (14, 21), (28, 1 + 2**31)):
            k = shifted(k, bits) * word(factor)
        k = k * word(0x9DDFEA08EB382D69)
        for _ in range(2):
            k = shifted(k, 47) * word(0x9DDFEA08EB382D69)
        return k.cast(pl.Int64, wrap_numerical=True) % pl.lit(rows, dtype=pl.Int64)

    low, high = (pl.lit(bound, dtype=pl.Float32) for bound in (np.float32(EPS), np.float32(1 - EPS)))
    dense = []
    for i in range(NUM_INTS):
        x = pl.col(f"int_{i}").fill_null(0).clip(low, high)
        dense.append((x / (pl.lit(1, dtype=pl.Float32) - x)).log().alias(f"dense_{i}"))
    ids = [hashed(f"cat_{i}", table_rows[i]).alias(f"ids_{i}") for i in range(NUM_CATS)]
    first = pl.col("int_0")
    steps = [(first > pl.lit(border, dtype=pl.Float32)).cast(pl.Int64) for border in BORDERS]
    expressions = [*dense, *ids, (steps[0] + steps[1] + steps[2]).alias("bucket")]

    def run() -> tuple[Any, Any, Any]:
        result = frame.select(expressions)
        parts = [result[f"ids_{i}"] for i in range(NUM_CATS)]
        flat = pl.concat([*parts, result["bucket"].drop_nulls()]).to_numpy()
        lengths = np.ones((NUM_CATS + 1, len(frame)), dtype=np.int32)
        lengths[NUM_CATS] = result["bucket"].is_not_null().to_numpy()
        return result.select([f"dense_{i}" for i in range(NUM_INTS)]).to_numpy(), flat, lengths.reshape(-1)

    return run


def compare(sides: dict[str, Callable[[], tuple[Any, Any, Any]]]) -> None:
    """Fails unless all sides give the same."""
    import numpy as np

    dense, ids, lengths = (np.asarray(each) for each in sides["rap"]())
    for name, side in sides.items():
        other_dense, other_ids, other_lengths = (np.asarray(each) for each in side())
        assert np.allclose(dense, other_dense, rtol=1e-4, atol=1e-4), name
        assert np.array_equal(ids, other_ids), name
        assert np.array_equal(lengths, other_lengths), name


def measure(sides: dict[str, Callable[[], tuple[Any, Any, Any]]], repeats: int) -> list[dict[str, Any]]:
    """Wall and processor times of alternating repeats, ms."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    processor: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            wall_s, processor_s = time.perf_counter(), time.process_time()
            side()
            wall[name].append(1e3 * (time.perf_counter() - wall_s))
            processor[name].append(1e3 * (time.process_time() - processor_s))
    best = min(min(wall[name]) for name in sides if name != "rap")
    return [
        {
            "side": name,
            "wall_min_ms": round(min(wall[name]), 3),
            "wall_median_ms": round(statistics.median(wall[name]), 3),
            "processor_min_ms": round(min(processor[name]), 3),
            "speed_over_best_other": round(best / min(wall[name]), 2),
        }
        for name in sides
    ]


if __name__ == "__main__":
    main()
