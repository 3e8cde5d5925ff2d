"""Where each embedding of a sample lies after the output exchange, as plain numbers.

TorchRec orders embeddings by owner rank ("rank-major"), a model by its own feature list. The
interaction kernels read the exchanged blocks as they are, [W][B][T_w * D], through this map, so
nothing is copied into the model's order. Only features that no rank looks up whole, because their table is split by columns or has a
copy on every rank, lie in a block of their own behind the peers' (`beside`). Values only: no tensors, no device.

B rows, D dim, F features of the interaction (the bottom MLP's output is one of them), T_w whole features
of rank w, E features beside, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
class Run:
    """Features that lie side by side: [B, count * D], in the order of the tile."""

    origin: Origin
    offset: int
    count: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Columns of a feature's embedding, as their owner looks them up."""

    feature: int
    """Its place in `Blocks.order`."""
    owner: int
    start: int
    """First column of the owner's row."""
    column: int
    """First column of the embedding."""
    width: int


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The exchange's shape: which rank owns which features, and how its blocks are laid out."""

    order: tuple[int, ...]
    """The model's feature indices: those of whole tables rank-major, as TorchRec exchanges them, then those beside."""
    counts: tuple[int, ...]
    """T_w: whole features of each rank."""
    rank: int
    batch_size: int
    dim: int
    spare_rows: int = 0
    """Rows of a lookup's output behind all ranks' rows; nobody is sent them, and their gradient is zero."""
    parts: tuple[Part, ...] = ()
    """What each owner looks up, rank-major and in the order of its lookup; empty: whole features only."""
    num_replicated: int = 0
    """The last features of `order`, which each rank looks up for its own rows."""

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order must name each feature once, got {list(self.order)}")
        if self.num_split < 0 or (self.num_split and not self.split_parts):
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
    def num_whole(self) -> int:
        """Features of whole tables; the rest of `order` is beside."""
        return sum(self.counts)

    @property
    def num_split(self) -> int:
        """Features of tables that are split by columns: behind the whole ones in `order`."""
        return len(self.order) - self.num_whole - self.num_replicated

    @property
    def num_beside(self) -> int:
        """E: features that are not read where they were exchanged."""
        return self.num_split + self.num_replicated

    @property
    def split_parts(self) -> tuple[Part, ...]:
        """Parts that are no whole embedding."""
        return tuple(part for part in self.parts if part.feature >= self.num_whole)

    @property
    def sent(self) -> tuple[int, ...]:
        """Places in `order` of the features whose ids are sent, rank-major; some several times."""
        return tuple(part.feature for part in self.parts) or tuple(range(self.num_whole))

    @property
    def num_sent(self) -> tuple[int, ...]:
        """Features whose ids each rank is sent."""
        if not self.parts:
            return self.counts
        return tuple(sum(part.owner == owner for part in self.parts) for owner in range(self.world_size))

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each rank's lookup output."""
        if not self.parts:
            return tuple(count * self.dim for count in self.counts)
        return tuple(sum(part.width for part in self.parts if part.owner == owner) for owner in range(self.world_size))

    @property
    def block_elements(self) -> int:
        """Elements of the largest block [B][width]; every block of a peer buffer starts at a multiple of it."""
        return self.batch_size * max(self.widths)

    @property
    def beside_start(self) -> int:
        """Where the block [B][E * D] begins in a peer buffer: behind the peers', if there are any."""
        return self.world_size * self.block_elements if self.world_size > 1 else 0

    @property
    def peer_elements(self) -> int:
        """Elements of a peer buffer."""
        return self.beside_start + self.batch_size * self.num_beside * self.dim

    @property
    def own_width(self) -> int:
        """Width of this rank's lookup output."""
        return self.widths[self.rank]

    @property
    def pooled_elements(self) -> int:
        """(W * B + spare rows) * width: this rank's lookup output."""
        return (self.world_size * self.batch_size + self.spare_rows) * self.own_width

    def tile(self) -> tuple[TileRow, ...]:
        """The tile's rows: the bottom MLP's output, then the embeddings as in `order`."""
        rows = [TileRow(position=0, origin=Origin.BOTTOM, offset=0, stride=self.dim)]
        placed = {part.feature: part.start for part in self.parts}
        widths = self.widths
        for owner, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            own = owner == self.rank
            base = 0 if own else owner * self.block_elements
            rows += [
                TileRow(
                    position=self.order[start + t] + 1,
                    origin=Origin.OWN if own else Origin.PEER,
                    offset=base + placed.get(start + t, t * self.dim),
                    stride=widths[owner],
                )
                for t in range(count)
            ]
        rows += [
            TileRow(
                position=self.order[self.num_whole + e] + 1,
                origin=Origin.PEER,
                offset=self.beside_start + e * self.dim,
                stride=self.num_beside * self.dim,
            )
            for e in range(self.num_beside)
        ]
        return tuple(rows)

    def runs(self) -> tuple[Run, ...]:
        """The embeddings of the tile, those side by side taken together."""
        found: list[Run] = []
        for row in self.tile()[1:]:
            last = found[-1] if found else None
            if (
                last is not None
                and (last.origin, last.stride) == (row.origin, row.stride)
                and row.offset == last.offset + last.count * self.dim
            ):
                found[-1] = replace(last, count=last.count + 1)
            else:
                found.append(Run(origin=row.origin, offset=row.offset, count=1, stride=row.stride))
        return tuple(found)


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
