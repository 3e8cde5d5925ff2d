"""Where each embedding of a sample lies after the output exchange, as plain numbers.

TorchRec orders embeddings by owner rank ("rank-major"), a model by its own feature list. The
interaction kernels read the exchanged blocks as they are, [W][B][T_w * D], through this map, so
nothing is copied into the model's order. Values only: no tensors, no device.

B rows, D dim, F features of the interaction (the bottom MLP's output is one of them), T_w tables
of rank w, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate


class Origin(IntEnum):
    """The buffer a row of the interaction's tile comes from."""

    BOTTOM = 0
    OWN = 1
    PEER = 2


@dataclass(frozen=True, kw_only=True)
class TileRow:
    """One feature of the interaction: row of the tile a kernel loads."""

    position: int
    """Its place in the model: 0 is the bottom MLP's output, 1.. the sparse features in the model's order."""
    origin: Origin
    offset: int
    """Elements from the start of the origin's buffer to sample 0."""
    stride: int
    """Elements from one sample to the next."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The exchange's shape: which rank owns which features, and how its blocks are laid out."""

    order: tuple[int, ...]
    """Rank-major list of the model's feature indices, as TorchRec exchanges them."""
    counts: tuple[int, ...]
    """T_w: features owned by each rank."""
    rank: int
    batch_size: int
    dim: int
    spare_rows: int = 0
    """Rows of a lookup's output behind all ranks' rows; nobody is sent them, and their gradient is zero."""

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order must name each feature once, got {list(self.order)}")
        if sum(self.counts) != len(self.order):
            raise ValueError(f"counts sum to {sum(self.counts)}, the order has {len(self.order)} features")
        if not 0 <= self.rank < len(self.counts):
            raise ValueError(f"rank {self.rank} of {len(self.counts)}")

    @property
    def world_size(self) -> int:
        return len(self.counts)

    @property
    def num_features(self) -> int:
        """F: sparse features and the bottom MLP's output."""
        return len(self.order) + 1

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each owner's features start in `order`."""
        return (0, *accumulate(self.counts))[:-1]

    @property
    def block_elements(self) -> int:
        """Elements of the largest block [B][T_w * D]; every block of a peer buffer starts at a multiple of it."""
        return self.batch_size * max(self.counts) * self.dim

    @property
    def own_width(self) -> int:
        """T * D: width of this rank's lookup output."""
        return self.counts[self.rank] * self.dim

    @property
    def pooled_elements(self) -> int:
        """(W * B + spare rows) * T * D: this rank's lookup output."""
        return (self.world_size * self.batch_size + self.spare_rows) * self.own_width

    def tile(self) -> tuple[TileRow, ...]:
        """The tile's rows: the bottom MLP's output, then the embeddings in rank-major order."""
        rows = [TileRow(position=0, origin=Origin.BOTTOM, offset=0, stride=self.dim)]
        for owner, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            own = owner == self.rank
            base = 0 if own else owner * self.block_elements
            rows += [
                TileRow(
                    position=self.order[start + t] + 1,
                    origin=Origin.OWN if own else Origin.PEER,
                    offset=base + t * self.dim,
                    stride=count * self.dim,
                )
                for t in range(count)
            ]
        return tuple(rows)


def pair_index(i: int, j: int, num_features: int) -> int:
    """Column of the pair i < j among the F(F-1)/2 interactions, as `torch.triu_indices(F, F, 1)` lists them."""
    assert 0 <= i < j < num_features
    return i * (2 * num_features - i - 1) // 2 + (j - i - 1)


def num_pairs(num_features: int) -> int:
    """F(F-1)/2: interactions of F features."""
    return num_features * (num_features - 1) // 2


def pad_to(width: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that holds `width`."""
    return -(-width // multiple) * multiple


def feature_order(owned: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[int, ...]:
    """Rank-major indices into `names` of the features each rank owns, in the order it looks them up."""
    index = {name: i for i, name in enumerate(names)}
    return tuple(index[name] for features in owned for name in features)
