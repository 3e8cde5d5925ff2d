"""The ends of the chains become what a model consumes: a dense matrix and a KeyedJaggedTensor.

Shapes: B rows, D dense numbers a row, F sparse features, N ids of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rap_contract.graph import FeatureGraph, FeatureSpec
from torchrec import KeyedJaggedTensor

from rap_trainer.ops import segments
from rap_trainer.ops.segments import rows_of
from rap_trainer.ops.value import Dense, Jagged, Value


def dense_matrix(features: Sequence[FeatureSpec], values: Sequence[Value], like: torch.Tensor) -> torch.Tensor:
    """[B, D] float32, in the order of the features; `like` has B rows and the device."""
    num_rows = like.numel()
    parts: list[torch.Tensor] = []
    for feature, value in zip(features, values, strict=True):
        if isinstance(value, Dense):
            parts.append(value.values_B.unsqueeze(1))
        else:
            parts.append(value.values_N[: num_rows * feature.width].view(num_rows, feature.width))
    if not parts:
        return torch.empty(num_rows, 0, dtype=torch.float32, device=like.device)
    return torch.cat([part.to(torch.float32) for part in parts], dim=1)


def sparse_tensor(graph: FeatureGraph, values: Sequence[Value], like: torch.Tensor) -> KeyedJaggedTensor:
    """The sparse features: int64 ids, int32 lengths, float32 weights (1 where a feature has none) if any has them."""
    lists = [as_list(value) for value in values]
    ids = [
        _in_range(each, feature) if feature.out_of_range == "zero" else each.values_N.to(torch.int64)
        for feature, each in zip(graph.sparse, lists, strict=True)
    ]
    num_rows = like.numel()
    lengths_FB = [each.lengths_B for each in lists]
    values_N = torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64, device=like.device)
    lengths = torch.cat(lengths_FB).to(torch.int32) if ids else torch.empty(0, dtype=torch.int32, device=like.device)
    weights_N = torch.cat([_weights(each) for each in lists]) if graph.weighted else None
    if not segments.host_may_look(like):
        values_N, weights_N = without_padding(lists, lengths, values_N, weights_N)
    return KeyedJaggedTensor(
        keys=[feature.name for feature in graph.sparse],
        values=values_N,
        weights=weights_N,
        lengths=lengths,
        stride=num_rows,
    )


def without_padding(
    lists: Sequence[Jagged], lengths: torch.Tensor, values_N: torch.Tensor, weights_N: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Concatenated lists without the padding behind each.

    The one place of a program that waits for the device: PyTorch must know a tensor's size. It waits
    once a batch, however many features there are; fused kernels do not come here.
    """
    num_rows = lengths.numel() // max(len(lists), 1)
    keep = [rows_of(each.lengths_B, each.values_N.numel()) < num_rows for each in lists]
    index_N = torch.cat(keep).nonzero().squeeze(1) if keep else torch.empty(0, dtype=torch.int64)
    if index_N.numel() == values_N.numel():
        return values_N, weights_N
    return values_N[index_N], None if weights_N is None else weights_N[index_N]


def as_list(value: Value) -> Jagged:
    """A value as lists: a number is a list of one, a null one an empty list."""
    if isinstance(value, Jagged):
        return value
    if value.nulls_B is None:
        return Jagged(values_N=value.values_B, lengths_B=torch.ones_like(value.values_B, dtype=torch.int32))
    lengths_B = (~value.nulls_B).to(torch.int32)
    if segments.host_may_look(lengths_B):
        return Jagged(values_N=value.values_B[~value.nulls_B], lengths_B=lengths_B)
    order_B = torch.sort(value.nulls_B.to(torch.uint8), stable=True).indices
    return Jagged(values_N=value.values_B[order_B], lengths_B=lengths_B)


def _in_range(value: Jagged, feature: FeatureSpec) -> torch.Tensor:
    """int64 ids, those that are no row of the table replaced by 0."""
    assert feature.table is not None
    ids_N = value.values_N.to(torch.int64)
    return ids_N.masked_fill((ids_N < 0) | (ids_N >= feature.table.rows), 0)


def _weights(value: Jagged) -> torch.Tensor:
    if value.weights_N is not None:
        return value.weights_N
    return torch.ones_like(value.values_N, dtype=torch.float32)
