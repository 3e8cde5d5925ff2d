"""How lists of ids travel: one block for each owner, each with a fixed room, so that every size of a step is static.

Features of tables that are split by columns have a block that every rank is sent; those of tables that every rank has, one that stays.

What a block does not fill is nobody's: the owner puts it into a bag of its own behind the last row, where its gradient is zero
(`jagged_inputs`). Rooms are bounds, not guesses: they follow from the raw columns' rooms, which the host checks for each
batch, through every op. Values only.

B rows, F features in rank-major order, N ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from rap_contract.graph import FeatureGraph

from rap_trainer.captured.blocks import pad_to
from rap_trainer.fusion.groups import Tiles, group
from rap_trainer.fusion.layout import Block, OutputLayout
from rap_trainer.fusion.lower import lower
from rap_trainer.fusion.program import MAX_GROWTH, Limits
from rap_trainer.fusion.sizes import Sizes

SPREAD = 4.0
"""Standard deviations of a column's elements that its room leaves above the largest batch seen, if the length of a row
varies as much as its mean: 6 % at 4096 rows."""
PLACE_IDS = 16
"""Every block begins at a multiple of so many ids: 128 bytes."""


@dataclass(frozen=True, kw_only=True)
class ListLayout:
    """The blocks a rank sends, the same on every rank."""

    owned: tuple[tuple[str, ...], ...]
    """Features of each rank's whole tables, in the order of its lookup."""
    room: tuple[int, ...]
    """Ids of the block to each rank, at most."""
    batch_size: int
    weighted: bool
    split: tuple[str, ...] = ()
    """Features of the block to all ranks."""
    split_room: int = 0
    replicated: tuple[str, ...] = ()
    """Features of the block that stays."""
    replicated_room: int = 0

    @property
    def features(self) -> tuple[tuple[str, ...], ...]:
        """Of every block: one for each rank, the one to all ranks, the one that stays."""
        return (*self.owned, self.split, self.replicated)

    @property
    def rooms(self) -> tuple[int, ...]:
        """Of every block."""
        return (*self.room, self.split_room, self.replicated_room)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each block begins among the ids."""
        return (0, *accumulate(self.rooms))[:-1]

    @property
    def size(self) -> int:
        """N of all blocks."""
        return sum(self.rooms)

    @property
    def rows(self) -> tuple[int, ...]:
        """First feature of each block."""
        return (0, *accumulate(len(features) for features in self.features))[:-1]

    def block(self, index: int) -> tuple[slice, slice]:
        """A block's place among ids and lengths; -2 is the one to all ranks, -1 the one that stays."""
        start, row, B = self.starts[index], self.rows[index], self.batch_size
        return slice(start, start + self.rooms[index]), slice(row * B, (row + len(self.features[index])) * B)

    def output_layout(self) -> OutputLayout:
        """What preprocessing writes."""
        return OutputLayout(
            blocks=tuple(
                Block(features=features, base=base, capacity=room, lengths_row=row)
                for features, base, room, row in zip(self.features, self.starts, self.rooms, self.rows, strict=True)
                if features
            )
        )


class Form(Enum):
    """How sparse features travel from their rows to their tables."""

    SINGLE = "at most one id a row and feature, whatever the data"
    ASSUMED = "at most one id a row and feature, as long as no list of the data has more"
    LISTS = "lists of ids"


def form_of(graph: FeatureGraph) -> Form:
    """The cheapest form that a job may begin with."""
    for form in (Form.SINGLE, Form.ASSUMED):
        try:
            single_layout(graph, [feature.name for feature in graph.sparse], form).check(graph)
        except ValueError:
            continue
        return form
    return Form.LISTS


def single_layout(graph: FeatureGraph, order: Sequence[str], form: Form) -> OutputLayout:
    """What preprocessing writes where no feature has more than one id a row."""
    lists = frozenset(name for name, kind in graph.columns.items() if kind.is_list)
    return OutputLayout.one_id_each(order, single=lists if form is Form.ASSUMED else frozenset())


def list_layout(
    graph: FeatureGraph,
    owned: tuple[tuple[str, ...], ...],
    *,
    batch_size: int,
    capacities: Mapping[str, int],
    split: tuple[str, ...] = (),
    replicated: tuple[str, ...] = (),
) -> ListLayout:
    """Blocks that hold whatever `capacities` of the raw columns can become. Raises ValueError where nothing bounds a list."""
    rooms = _rooms(graph, batch_size, capacities, MAX_GROWTH)
    unbounded = [
        name for name, room in _rooms(graph, batch_size, capacities, MAX_GROWTH**2).items() if room > rooms[name]
    ]
    if unbounded:
        raise ValueError(
            f"the pairs of feature {unbounded[0]} have no bound that a captured size could hold; lower `max` of cartesian"
        )

    def room_of(features: tuple[str, ...]) -> int:
        return pad_to(sum(rooms[name] for name in features), PLACE_IDS)

    return ListLayout(
        owned=owned,
        room=tuple(max(PLACE_IDS, room_of(features)) for features in owned),
        batch_size=batch_size,
        weighted=graph.weighted,
        split=split,
        split_room=room_of(split),
        replicated=replicated,
        replicated_room=room_of(replicated),
    )


def _rooms(graph: FeatureGraph, batch_size: int, capacities: Mapping[str, int], growth: int) -> dict[str, int]:
    """Ids of each sparse feature in a batch, at most."""
    limits = list_limits(graph, batch_size=batch_size, capacities=capacities)
    groups = group(lower(graph, limits.nullable, padded=False), tiles=Tiles())
    columns = {name: 0 for name, kind in graph.columns.items() if kind.is_list} | dict(capacities)
    sizes = Sizes(batch_size=batch_size, columns=columns, growth=growth)
    rooms: dict[str, int] = {}
    for stage in groups.stages:
        room = sizes.stage(stage)
        if stage.destination.kind == "ids":
            rooms[stage.feature] = room
    for lane in groups.lanes:
        if lane.destination.kind == "ids":
            rooms[lane.feature] = lane.destination.width * batch_size
    return rooms


def list_limits(graph: FeatureGraph, *, batch_size: int, capacities: Mapping[str, int]) -> Limits:
    """What the fused program is made for: every column may hold nulls that is declared so."""
    read = {*graph.inputs, graph.label}
    nullable = frozenset(name for name in read if graph.columns[name].nullable and name != graph.label)
    return Limits(batch_size=batch_size, capacities=capacities, nullable=nullable, growth=MAX_GROWTH)


def roomy(elements: int, batch_size: int) -> int:
    """Room of a list column of which a batch has held so many elements."""
    return math.ceil(elements * (1 + SPREAD / math.sqrt(batch_size)))
