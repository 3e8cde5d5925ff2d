"""Batches to measure with: one pool of a job's columns, any first rows of which are a batch without copying."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from rap_contract.graph import FeatureGraph

from rap_trainer.batch import Column, RawBatch
from rap_trainer.synthetic_batch import MEAN_LENGTH, synthetic_batch


def pool(document: dict[str, Any], rows: int, *, mean_length: float, seed: int, device: torch.device) -> RawBatch:
    """Random rows of a job's columns, lists of this mean length."""
    metadata = document.get("metadata", {})
    annotations = {**metadata.get("annotations", {}), MEAN_LENGTH: str(mean_length)}
    return synthetic_batch(
        {**document, "metadata": {**metadata, "annotations": annotations}}, rows, seed=seed, device=device
    )


def first_rows(raw: RawBatch, rows: int, graph: FeatureGraph) -> RawBatch:
    """The first rows of the columns a graph reads; views."""
    columns = {name: _first(raw.columns[name], rows) for name in dict.fromkeys((*graph.inputs, graph.label))}
    return replace(
        raw,
        columns=columns,
        row_ids_B=raw.row_ids_B[:rows],
        event_times_s_B=raw.event_times_s_B[:rows],
        num_rows=rows,
        global_rows=rows,
    )


def _first(column: Column, rows: int) -> Column:
    if column.lengths_B is None:
        number, lengths_B = rows, None
    else:
        lengths_B = column.lengths_B[:rows]
        number = int(lengths_B.sum())
    nulls_N = column.nulls_N
    return Column(
        values_N=column.values_N[:number], lengths_B=lengths_B, nulls_N=None if nulls_N is None else nulls_N[:number]
    )


def mean_lengths(raw: RawBatch) -> dict[str, float]:
    """Elements a row of each list column of a batch."""
    return {
        name: column.values_N.numel() / max(raw.num_rows, 1)
        for name, column in raw.columns.items()
        if column.lengths_B is not None
    }
