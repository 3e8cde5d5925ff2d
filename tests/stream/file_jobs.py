"""Jobs over files, and a training loop without a model: what tests of file sources share."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rap_contract.job import RAPJobSpec
from rap_trainer.batch import Positions, RawBatch
from rap_trainer.stream.catalogue import LocalStore
from rap_trainer.stream.files import FileSource, FileSourceOptions
from rap_trainer.stream.node_sharing import Sharing

DEADLINE_S = 60.0
COLUMNS = {"label": "int32", "row": "int64", "dense": "float32", "ids": "list<int64>"}


def job(path: Path, *, batch_rows: int = 8, columns: dict[str, str] | None = None, **files: Any) -> RAPJobSpec:
    """A job that reads `path`; `files` are keys of spec.source.files."""
    names = columns or COLUMNS
    dense = next(name for name in names if name != "label")
    return RAPJobSpec.model_validate(
        {
            "source": {"files": {"path": str(path), "errorBudget": {"ratio": 1.0}, **files}},
            "columns": names,
            "label": "label",
            "features": [{"columns": [dense], "ops": [{"fillNull": {"value": 0}}]}],
            "model": {"dlrm": {"bottom": [8], "top": [1]}},
            "trainer": {"batchSizePerGpu": batch_rows},
            "checkpoint": {"path": str(path.parent / "checkpoints")},
        }
    )


def table(first_row: int, num_rows: int, *, bad: Sequence[int] = ()) -> pa.Table:
    """Rows numbered from `first_row`; those of `bad` have the label 7."""
    rows = range(first_row, first_row + num_rows)
    return pa.table(
        {
            "label": pa.array([7 if row in bad else row % 2 for row in rows], pa.int32()),
            "row": pa.array(rows, pa.int64()),
            "dense": pa.array([None if row % 5 == 0 else row / 2 for row in rows], pa.float32()),
            "ids": pa.array(
                [None if row % 7 == 0 else list(range(row, row + row % 4)) for row in rows], pa.list_(pa.int64())
            ),
        }
    )


def write(directory: Path, name: str, rows: pa.Table, *, row_group_size: int | None = None) -> Path:
    """A Parquet file that appears whole."""
    directory.mkdir(exist_ok=True)
    aside = directory / f".{name}"
    pq.write_table(rows, aside, row_group_size=row_group_size)
    return aside.rename(directory / name)


@contextmanager
def ranks(
    spec: RAPJobSpec,
    world_size: int = 1,
    *,
    start: Positions | None = None,
    options: FileSourceOptions | None = None,
    ranks_per_node: int = 1,
) -> Iterator[list[FileSource]]:
    """The sources of all ranks, in one process; those of a node share what its first one decodes."""
    store = LocalStore()
    given = options or FileSourceOptions(settle_s=0.05)
    run = f"test-files-{secrets.token_hex(8)}"
    sources = []
    for rank in range(world_size):
        node, local_rank = divmod(rank, ranks_per_node)
        size = min(ranks_per_node, world_size - node * ranks_per_node)
        sharing = Sharing(address=f"{run}-{node}", local_rank=local_rank, local_size=size) if size > 1 else None
        own = replace(given, sharing=sharing)
        sources.append(FileSource(spec, rank=rank, world_size=world_size, start=start, store=store, options=own))
    try:
        yield sources
    finally:
        for source in sources:
            source.close()


def step(sources: Sequence[FileSource], *, flush: bool = True) -> list[RawBatch] | None:
    """The next step of all ranks, waiting for it; None at the end. `flush` takes what is left at the end."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        offers = [source.offer() for source in sources]
        ended = all(offer.ended for offer in offers)
        ready = [offer.rows for offer in offers]
        decisions = {source.shares(ready, flush=ended and flush) for source in sources}
        assert len(decisions) == 1, "ranks disagree"
        shares = decisions.pop()
        if shares is not None:
            return [source.take(shares) for source in sources]
        if ended:
            return None
        threading.Event().wait(0.001)
    raise AssertionError(f"no step within {DEADLINE_S} s")


def train(sources: Sequence[FileSource], *, max_steps: int | None = None) -> list[list[list[int]]]:
    """Row numbers by step and rank, to the end of the source or `max_steps`."""
    steps: list[list[list[int]]] = []
    while max_steps is None or len(steps) < max_steps:
        batches = step(sources)
        if batches is None:
            break
        steps.append([batch.columns["row"].values_N.tolist() for batch in batches])
    return steps


def flat(steps: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Row numbers by step, ranks joined in order."""
    return [[row for rows in one for row in rows] for one in steps]
