"""What the data asks of preprocessing, by feature group: mean list length and null share of its columns.

Looked at on the host before a batch goes to a device, in one batch of SAMPLE_EVERY, so that it costs next to nothing.
At most MAX_GROUPS groups are told apart, because each becomes two Prometheus series. Not here: what a drift leads to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rap_contract.features import Feature
from rap_contract.names import expand

from rap_trainer.batch import Column, RawBatch

SAMPLE_EVERY = 16  # batches; 39 columns of 4096 rows take 0.12 ms here (one CPU core, 2026-11-29)
MAX_GROUPS = 50
OTHERS = "(others)"


@dataclass(frozen=True, kw_only=True)
class GroupLoad:
    """Of the batches looked at since the reading before; None without rows, or without lists."""

    group: str
    mean_list_length: float | None
    """Elements of a list, nulls included; a null list counts as one element."""
    null_ratio: float | None
    """Share of null values or elements."""


@dataclass
class _Sums:
    lists: int = 0
    elements: int = 0
    """Of lists."""
    values: int = 0
    """Of lists and scalar columns."""
    nulls: int = 0

    def add(self, column: Column) -> None:
        values = column.values_N.shape[0]
        if column.lengths_B is not None:
            self.lists += column.lengths_B.shape[0]
            self.elements += values
        self.values += values
        if column.nulls_N is not None:
            self.nulls += int(column.nulls_N.count_nonzero())


class Workload:
    """Sums of one rank. Not thread-safe."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self._groups = groups
        self._sums = {group: _Sums() for group in groups}
        self._batches = 0

    def update(self, batch: RawBatch) -> None:
        """Looks at a batch on the host if its turn has come; columns the batch does not have are left out."""
        if self._batches % SAMPLE_EVERY == 0:
            for group, names in self._groups.items():
                for name in names:
                    if (column := batch.columns.get(name)) is not None:
                        self._sums[group].add(column)
        self._batches += 1

    def take(self) -> tuple[GroupLoad, ...]:
        """What came since the last call, and begins anew."""
        taken, self._sums = self._sums, {group: _Sums() for group in self._groups}
        return tuple(
            GroupLoad(
                group=group,
                mean_list_length=sums.elements / sums.lists if sums.lists else None,
                null_ratio=sums.nulls / sums.values if sums.values else None,
            )
            for group, sums in taken.items()
        )


def group_columns(features: Sequence[Feature]) -> dict[str, tuple[str, ...]]:
    """Columns by group: each entry of `spec.features` under its name or first column; what is beyond MAX_GROUPS together."""
    groups: dict[str, tuple[str, ...]] = {}
    for feature in features:
        columns = tuple(name for pattern in feature.columns for name in expand(pattern))
        name = feature.name or feature.columns[0]
        if name not in groups and len(groups) >= MAX_GROUPS:
            name = OTHERS
        groups[name] = tuple(dict.fromkeys((*groups.get(name, ()), *columns)))
    return groups
