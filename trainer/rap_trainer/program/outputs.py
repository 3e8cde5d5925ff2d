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
from rap_trainer.program.side_by_side import Joined, Piece, runs


def dense_matrix(features: Sequence[FeatureSpec], pieces: Sequence[Value | Piece], like: torch.Tensor) -> torch.Tensor:
    """[B, D] float32, in the order of the features; `like` has B rows and the device."""
    num_rows = like.numel()
    parts: list[torch.Tensor] = []
    place = 0
    for each in runs(pieces):
        widths = {feature.width for feature in features[place : place + each.copies]}
        values = [each] if len(widths) == 1 else [Joined(value, 1) for value in each.parts]
        for value in values:
            parts.append(_matrix(value, num_rows, features[place].width))
            place += value.copies
    if not parts:
        return torch.empty(num_rows, 0, dtype=torch.float32, device=like.device)
    return torch.cat([part.to(torch.float32) for part in parts], dim=1)


def _matrix(joined: Joined, num_rows: int, width: int) -> torch.Tensor:
    """[B, copies * width]."""
    value, copies = joined.value, joined.copies
    if isinstance(value, Dense):
        return value.values_B.view(copies, num_rows).t()
    values_N = value.values_N[: copies * num_rows * width]  # the rest is padding
    if copies == 1:
        return values_N.view(num_rows, width)
    return values_N.view(copies, num_rows, width).transpose(0, 1).reshape(num_rows, copies * width)


def sparse_tensor(graph: FeatureGraph, pieces: Sequence[Value | Piece], like: torch.Tensor) -> KeyedJaggedTensor:
    """The sparse features: int64 ids, int32 lengths, float32 weights (1 where a feature has none) if any has them."""
    lists: list[Jagged] = []
    place = 0
    for each in runs(pieces):
        features = graph.sparse[place : place + each.copies]
        place += each.copies
        if (
            len(
                {
                    feature.table.rows if feature.out_of_range == "zero" and feature.table else None
                    for feature in features
                }
            )
            > 1
        ):
            lists += [_ids(value, feature) for value, feature in zip(each.parts, features, strict=True)]
        else:
            lists.append(_ids(each.value, features[0]))
    values_N = _cat([each.values_N for each in lists], torch.int64, like.device)
    lengths = _cat([each.lengths_B for each in lists], torch.int32, like.device)
    weights_N = _cat([_weights(each) for each in lists], torch.float32, like.device) if graph.weighted else None
    if not segments.host_may_look(like):
        values_N, weights_N = without_padding(lists, values_N, weights_N)
    return KeyedJaggedTensor(
        keys=[feature.name for feature in graph.sparse],
        values=values_N,
        weights=weights_N,
        lengths=lengths,
        stride=like.numel(),
    )


def _cat(parts: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.cat([part.to(dtype) for part in parts]) if parts else torch.empty(0, dtype=dtype, device=device)


def _ids(value: Value, feature: FeatureSpec) -> Jagged:
    """A value as lists of the table's rows."""
    lists = as_list(value)
    if feature.out_of_range == "refuse":  # proven by the graph
        return lists
    assert feature.table is not None
    ids_N = lists.values_N
    return lists.with_values(ids_N.masked_fill((ids_N < 0) | (ids_N >= feature.table.rows), 0))


def without_padding(
    lists: Sequence[Jagged], values_N: torch.Tensor, weights_N: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Concatenated lists without the padding behind each.

    The one place of a program that waits for the device: PyTorch must know a tensor's size. It waits
    once a batch, however many features there are; fused kernels do not come here.
    """
    keep = [rows_of(each.lengths_B, each.values_N.numel()) < each.lengths_B.numel() for each in lists]
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


def _weights(value: Jagged) -> torch.Tensor:
    if value.weights_N is not None:
        return value.weights_N
    return torch.ones_like(value.values_N, dtype=torch.float32)
