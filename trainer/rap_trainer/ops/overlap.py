"""Two lists of ids as groups of equal ids within a row: what all comparing ops count on. No op itself.

Shapes: B rows, N elements of both lists, G <= N groups (distinct ids of a row).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from rap_contract.ops.lists import Scores

from rap_trainer.ops import segments
from rap_trainer.ops.segments import offsets_of, places, rows_of
from rap_trainer.ops.value import Dense, Jagged, References, Value


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Distinct ids of each row. Arrays are N long; groups that do not exist have row B and count 0."""

    rows_G: torch.Tensor
    """int64: the row of a group."""
    group_of_first: torch.Tensor
    """int64 [N of the first list]: each element's group."""
    group_of_second: torch.Tensor
    num_rows: int
    nulls_B: torch.Tensor | None

    def count(self, group_M: torch.Tensor) -> torch.Tensor:
        """[N] int64: elements of each group."""
        return self.sum(group_M, torch.ones_like(group_M))

    def sum(self, group_M: torch.Tensor, numbers_M: torch.Tensor) -> torch.Tensor:
        """[N]: sum of each group's numbers."""
        zeros = torch.zeros(self.rows_G.numel(), dtype=numbers_M.dtype, device=numbers_M.device)
        return zeros.index_add_(0, group_M, numbers_M)

    def by_row(self, numbers_G: torch.Tensor) -> torch.Tensor:
        """[B]: sum over the groups of each row."""
        zeros = torch.zeros(self.num_rows + 1, dtype=numbers_G.dtype, device=numbers_G.device)
        return zeros.index_add_(0, self.rows_G, numbers_G)[: self.num_rows]

    def result(self, values_B: torch.Tensor) -> Dense:
        """Numbers a row as float32, null where either list is."""
        return Dense(values_B=values_B.to(torch.float32), nulls_B=self.nulls_B)


def groups(first: Value, second: Value, *scores: Value) -> Groups:
    """Sorts both lists' ids by row and id, stably, and numbers the runs. Rows null in `scores` are null too."""
    assert isinstance(first, Jagged)
    assert isinstance(second, Jagged)
    num_first, num_second = first.values_N.numel(), second.values_N.numel()
    ids_N = torch.cat([first.values_N, second.values_N])
    rows_N = torch.cat([rows_of(first.lengths_B, num_first), rows_of(second.lengths_B, num_second)])
    ids_N, order_N = torch.sort(ids_N, stable=True)
    rows_N, by_row_N = torch.sort(rows_N[order_N], stable=True)
    ids_N, order_N = ids_N[by_row_N], order_N[by_row_N]
    new_N = torch.ones_like(rows_N)
    new_N[1:] = (rows_N[1:] != rows_N[:-1]) | (ids_N[1:] != ids_N[:-1])
    group_N = torch.cumsum(new_N, 0) - 1
    original_N = torch.empty_like(group_N).scatter_(0, order_N, group_N)
    num_rows = first.lengths_B.numel()
    rows_G = torch.full_like(rows_N, num_rows).scatter_(0, group_N, rows_N)
    nulls = [each.nulls_B for each in (first, second, *scores) if each.nulls_B is not None]
    return Groups(
        rows_G=rows_G,
        group_of_first=original_N[:num_first],
        group_of_second=original_N[num_first:],
        num_rows=num_rows,
        nulls_B=torch.stack(nulls).any(0) if nulls else None,
    )


def overlap_count(found: Groups) -> torch.Tensor:
    """[B] int64: sum over ids of the smaller of the two counts."""
    first_G, second_G = found.count(found.group_of_first), found.count(found.group_of_second)
    return found.by_row(torch.minimum(first_G, second_G))


def aligned_scores(ids: Value, scores: Value) -> torch.Tensor:
    """float64 score of each element of `ids`. Raises ValueError on CPU if a non-null row's lengths differ."""
    assert isinstance(ids, Jagged)
    assert isinstance(scores, Jagged)
    if segments.host_may_look(ids.lengths_B):
        differs_B = ids.lengths_B != scores.lengths_B
        for nulls_B in (ids.nulls_B, scores.nulls_B):
            differs_B = differs_B if nulls_B is None else differs_B & ~nulls_B
        if bool(differs_B.any()):
            row = int(differs_B.nonzero()[0])
            raise ValueError(
                f"row {row} of the batch has {int(ids.lengths_B[row])} ids but {int(scores.lengths_B[row])} scores; "
                "scores run parallel to their ids"
            )
    rows_N, positions_N = places(ids.lengths_B, ids.values_N.numel())
    index_N = offsets_of(scores.lengths_B)[rows_N] + positions_N
    padded = torch.nn.functional.pad(scores.values_N, (0, 1))
    return padded[index_N.clamp_(0, scores.values_N.numel())].to(torch.float64)


def extreme_score(op: Scores, value: Value, references: References, reduce: Literal["amin", "amax"]) -> Dense:
    """Least or greatest score of the elements of `match` whose id is in the list; 0 without one; NaN wins."""
    match = references[op.match]
    found = groups(value, match, references[op.scores])
    scores_N = aligned_scores(match, references[op.scores])
    common_N = (found.count(found.group_of_first) > 0)[found.group_of_second]
    rows_N = found.rows_G[found.group_of_second].masked_fill_(~common_N, found.num_rows)
    zeros_R = torch.zeros(found.num_rows + 1, dtype=scores_N.dtype, device=scores_N.device)
    return found.result(zeros_R.scatter_reduce_(0, rows_N, scores_N, reduce, include_self=False)[: found.num_rows])
