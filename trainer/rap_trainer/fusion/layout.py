"""Where sparse features go in the output buffers: the order and places the step's input dist wants. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rap_contract.graph import FeatureGraph


@dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive features, their ids packed one after the other: what goes to one owner."""

    features: tuple[str, ...]
    base: int = 0
    """Element of the ids buffer at which the block begins."""
    capacity: int | None = None
    """Elements the block may hold, more is overflow; None: as many as the buffer has."""
    lengths_row: int = 0
    """Row of the lengths buffer of the block's first feature; the others follow."""


@dataclass(frozen=True, kw_only=True)
class OutputLayout:
    """The blocks of an output. Every sparse feature is in exactly one."""

    blocks: tuple[Block, ...]
    write_lengths: bool = True
    """Whether constant lengths (of features that always hold the same number of ids) are written in every batch.

    False: the owner of the buffers has written them once, and every batch has the same number of rows.
    """

    @classmethod
    def plain(cls, graph: FeatureGraph) -> OutputLayout:
        """One block in the order of the features: a KeyedJaggedTensor."""
        return cls(blocks=(Block(features=tuple(feature.name for feature in graph.sparse)),))

    @classmethod
    def one_id_each(cls, order: Sequence[str]) -> OutputLayout:
        """[order][B]: the send buffer of an input dist of features with one id a row; lengths are not written."""
        return cls(blocks=(Block(features=tuple(order)),), write_lengths=False)

    def check(self, graph: FeatureGraph) -> None:
        """Raises ValueError unless each sparse feature has exactly one place."""
        placed = [name for block in self.blocks for name in block.features]
        wanted = [feature.name for feature in graph.sparse]
        if sorted(placed) != sorted(wanted):
            missing, surplus = set(wanted) - set(placed), set(placed) - set(wanted)
            raise ValueError(
                "the layout must place each sparse feature once: "
                f"missing {sorted(missing)}, unknown {sorted(surplus)}, {len(placed)} places for {len(wanted)} features"
            )
