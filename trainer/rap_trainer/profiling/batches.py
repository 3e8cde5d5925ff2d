"""Batches to measure with: one pool of a job's columns, any first rows of which are a batch without copying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.profile import GroupWorkload, Workload
from rap_planner.lengths import SHARES, Lengths, mean, of_column, shares_of

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


def workload_of(batches: Sequence[RawBatch]) -> Workload:
    """The lists of some batches, by column: mean length and shape."""
    lengths = {
        name: torch.cat([lengths_B for batch in batches if (lengths_B := batch.columns[name].lengths_B) is not None])
        for name, column in batches[0].columns.items()
        if column.lengths_B is not None
    }
    if not lengths:
        return Workload()
    shares = _shares(torch.stack(list(lengths.values())))
    return Workload(columns={name: _load(each) for name, each in zip(lengths, shares, strict=True)})


def shape_of(workload: Workload) -> Lengths:
    """Of the lists of all columns together; empty where all are as long."""
    columns = [of_column(load) for load in workload.columns.values() if load.list_shape]
    return shares_of([length for each in columns for length in each]) if columns else ()


def _load(shares: Sequence[float]) -> GroupWorkload:
    return GroupWorkload(mean_list_length=mean(tuple(shares)), list_shape=shares if shares[0] < shares[-1] else ())


def _shares(lengths_CN: torch.Tensor) -> list[list[float]]:
    """Mean lengths of equal shares of each row of C columns, the shortest first."""
    ordered_CN = lengths_CN.sort(dim=1).values.to(torch.float64)
    parts = ordered_CN.tensor_split(min(SHARES, ordered_CN.shape[1]), dim=1)
    return [list(map(float, row)) for row in torch.stack([part.mean(dim=1) for part in parts], dim=1).tolist()]
