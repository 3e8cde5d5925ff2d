"""Batches as sources deliver them: columns with one value a row as the rows of one matrix a type."""

from __future__ import annotations

from dataclasses import replace

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.types import Dtype

from rap_trainer.batch import Block, RawBatch, tensors_of


def with_blocks(raw: RawBatch, graph: FeatureGraph, *, pinned: bool = False) -> RawBatch:
    """The same rows in new memory; no blocks for lists of other lengths than 1, as sources do it.

    `pinned`: as the file source delivers them beside a GPU.
    """
    blocks: list[Block] = []
    single = [
        name for name, column in raw.columns.items() if column.lengths_B is None or bool((column.lengths_B == 1).all())
    ]
    for dtype in Dtype:
        names = tuple(name for name in graph.columns if name in single and graph.columns[name].dtype is dtype)
        if names:
            data_CB = torch.stack([raw.columns[name].values_N for name in names])
            blocks.append(Block(names=names, field="values", data_CB=data_CB))
    nulls = {name: raw.columns[name].nulls_N for block in blocks for name in block.names}
    flags = {name: each for name, each in nulls.items() if each is not None}
    if flags:
        blocks.append(Block(names=tuple(flags), field="nulls", data_CB=torch.stack(list(flags.values()))))
    if pinned:
        blocks = [replace(block, data_CB=block.data_CB.pin_memory()) for block in blocks]
    values, null_rows = tensors_of(blocks, "values"), tensors_of(blocks, "nulls")
    columns = {
        name: replace(column, values_N=values[name], nulls_N=null_rows.get(name)) if name in values else column
        for name, column in raw.columns.items()
    }
    return replace(raw, columns=columns, blocks=tuple(blocks))
