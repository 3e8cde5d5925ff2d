"""Device tables of a plan, built once: every number a kernel looks up, in the layout of `words`. Pure Python.

A slot has three addresses, of values, null flags and lengths; those of raw columns change from batch to batch
and are bound later. Offsets, counts and positions of all lists lie in one buffer each; the tables say where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rap_trainer.fusion.groups import Groups
from rap_trainer.fusion.layout import OutputLayout
from rap_trainer.fusion.ops.codes import CODES
from rap_trainer.fusion.ops.elements import DTYPE_CODES
from rap_trainer.fusion.ops.step import STEP_WORDS, Step
from rap_trainer.fusion.sizes import Sizes
from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import JointComparison, Lane, Operand, Selection, Stage, chain_of
from rap_trainer.fusion.words import COMPARISON_KINDS, FOUND_CODES, KIND_CODES, MODES, STRUCTURES


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a sparse feature goes: its block, its row of lengths, and the constant numbers of ids before it there."""

    block: int
    lengths_row: int
    base: int
    ids_per_row_before: int | None
    """None: lists of varying length come before it in its block."""


@dataclass
class Tables:
    """The numbers of one plan; lists of rows of int64 words."""

    groups: Groups
    sizes: Sizes
    layout: OutputLayout
    names: tuple[str, ...]
    """Sparse features in the job's order."""
    slots: dict[Slot, int] = field(default_factory=dict)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    ints: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    lanes: list[tuple[int, ...]] = field(default_factory=list)
    bundles: list[tuple[int, ...]] = field(default_factory=list)
    lane_slots: list[int] = field(default_factory=list)
    """What each lane reads."""
    entries: list[tuple[int, ...]] = field(default_factory=list)
    selections: list[tuple[int, ...]] = field(default_factory=list)
    comparisons: list[tuple[int, ...]] = field(default_factory=list)
    features: list[tuple[int, ...]] = field(default_factory=list)
    """In the order of the layout: (entry or -1, width, block, place among the sparse)."""
    num_offsets: int = 0
    num_counts: int = 0
    num_chosen: int = 0
    num_hashes: int = 0
    num_filled: int = 0
    capacities: list[int] = field(default_factory=list)
    """Of each entry."""
    _offsets: dict[Slot, int] = field(default_factory=dict)
    _counts: dict[Selection, int] = field(default_factory=dict)
    _chosen: dict[Selection, int] = field(default_factory=dict)
    _hashes: dict[Selection, int] = field(default_factory=dict)
    _pools: dict[tuple[object, ...], int] = field(default_factory=dict)
    _step_ranges: dict[tuple[Step, ...], int] = field(default_factory=dict)

    def build(self) -> Tables:
        """Fills all tables."""
        groups = self.groups
        for stage in groups.stages:
            self.sizes.stage(stage)
        for operand in groups.raw_lists:
            self._offsets[operand.slot] = self._take_offsets()
        for selection, operand in self._selected:
            self._add_selection(selection, operand)
        for operand in groups.raw_lists:
            self._add_raw(operand)
        places = _places(self.layout, self.names, self._widths())
        chains = self._chains()
        for number, stage in enumerate(groups.stages):
            self._add_stage(stage, chains[number], places)
        self.selections = [self._selection_row(s, o) for s, o in self._selected]
        self.comparisons = [self._comparison_row(comparison) for comparison in groups.comparisons]
        self.lanes = [
            self._lane_row(lane, launch.forms.index(lane.form), places)
            for launch in groups.launches
            if launch.kernel == "lanes"
            for lane in groups.lanes[launch.first : launch.end]
        ]
        self.bundles = [
            (lanes.start, len(lanes), launch.forms.index(first.form), first.destination.index)
            for launch in groups.launches
            for lanes in launch.bundles
            for first in (groups.lanes[lanes.start],)
        ]
        self._add_features()
        return self

    # -- slots, pools and steps

    def slot(self, slot: Slot) -> int:
        """The place of a slot among the pointers."""
        return self.slots.setdefault(slot, len(self.slots))

    def _pool(self, kind: str, values: tuple[int, ...] | tuple[float, ...], pool: list[int] | list[float]) -> int:
        if (kind, values) not in self._pools:
            self._pools[(kind, values)] = len(pool)
            pool.extend(values)  # type: ignore[arg-type]  # the caller pairs them
        return self._pools[(kind, values)]

    def _range(self, steps: tuple[Step, ...]) -> tuple[int, int]:
        """First step and one past the last; equal chains share their rows."""
        if steps not in self._step_ranges:
            self._step_ranges[steps] = len(self.steps)
            self.steps += [self._step_row(step) for step in steps]
        begin = self._step_ranges[steps]
        return begin, begin + len(steps)

    def _step_row(self, step: Step) -> tuple[int, ...]:
        words = list(step.parameters)
        if step.pool_at is not None:
            ints, floats = step.ints, step.floats
            words[step.pool_at] = self._pool("i", ints, self.ints) if ints else self._pool("f", floats, self.floats)
        if step.slot is not None:
            words[0] = self.slot(step.slot)
        return padded((CODES[step.name], *words), STEP_WORDS)

    # -- lists

    def _take_offsets(self) -> int:
        begin = self.num_offsets
        self.num_offsets += self.sizes.batch_size + 1
        return begin

    def _add_selection(self, selection: Selection, operand: Operand) -> None:
        self._counts[selection] = self.num_counts
        self.num_counts += 3 * self.sizes.batch_size
        if selection.draw is not None:
            self._hashes[selection] = self.num_hashes
            self.num_hashes += self.sizes.batch_size
        if operand.is_list and selection.packs:
            self._chosen[selection] = self.num_chosen
            self.num_chosen += self.sizes.operand(operand)

    def _operand(self, operand: Operand | None) -> tuple[int, ...]:
        if operand is None:
            return padded((0, 0, 0, -1, -1, -1, -1), 8)
        selection = operand.selection
        return padded(
            (
                self.slot(operand.slot),
                DTYPE_CODES[operand.dtype],
                int(operand.is_list),
                self._offsets.get(operand.slot, -1),
                -1 if selection is None else self._counts[selection],
                -1 if selection is None else self._chosen.get(selection, -1),
                -1 if operand.weights is None else self.slot(operand.weights),
                -1 if selection is None else self._counts[selection] + self.sizes.batch_size,
            ),
            8,
        )

    def _add_raw(self, operand: Operand) -> None:
        """An entry that only finds a column's offsets."""
        limit, capacity = 2**31 - 1, self.sizes.operand(operand)
        words = (limit, 0, 0, limit, -1, -1, self._offsets[operand.slot], -1, 0, 0, 0, 0, 0, 0, -1, capacity)
        self.entries.append(padded((*self._operand(operand), *self._operand(None), *words), 40))
        self.capacities.append(capacity)

    def _chains(self) -> dict[int, tuple[int, int]]:
        """Which of their launch's chains stages take, by the stage's number: before and after the structure."""
        skipped = len(self.groups.raw_lists)
        found: dict[int, tuple[int, int]] = {}
        for launch in self.groups.launches:
            if launch.kernel == "values":
                for number in range(launch.first - skipped, launch.end - skipped):
                    stage = self.groups.stages[number]
                    place = launch.chains.index
                    found[number] = (place(chain_of(stage.pre)), place(chain_of(stage.post)))
        return found

    def _add_stage(self, stage: Stage, chains: tuple[int, int], places: Mapping[int, Place]) -> None:
        """The entry of a stage."""
        capacity = self.sizes.stage(stage)
        destination, structure, selection = stage.destination, stage.structure, stage.operand.selection
        sources = (*self._operand(stage.operand), *self._operand(structure.other))
        offsets = self._take_offsets()
        filled = -1
        if not stage.keeps_positions:
            filled, self.num_filled = self.num_filled, self.num_filled + self.sizes.batch_size
        if destination.slot is not None:
            self._offsets[destination.slot] = offsets
        slot = -1 if destination.slot is None else self.slot(destination.slot)
        weights = -1
        if destination.slot is not None and stage.weighted:
            weights = self.slot(Slot(f"{destination.slot.name}/weights", destination.slot.node))
        words = (
            stage.limit_before,
            STRUCTURES.index(structure.kind),
            structure.parameter,
            stage.limit_after,
            places[destination.index].lengths_row if destination.slot is None else -1,
            slot,
            offsets,
            filled,
            *self._range(stage.pre),
            *self._range(stage.post),
            KIND_CODES[destination.written],
            destination.index if destination.slot is None else slot,
            weights,
            capacity,
            *chains,
            int(selection in self.groups.found and stage.keeps_picks),
            self._draw(selection),
            int(stage.keeps_positions),
        )
        self.entries.append(padded((*sources, *words), 40))
        self.capacities.append(capacity)

    def _selection_row(self, selection: Selection, operand: Operand) -> tuple[int, ...]:
        draw = selection.draw
        plain = Operand(slot=operand.slot, dtype=operand.dtype, is_list=operand.is_list, selection=selection)
        words = (
            -1 if selection.partner is None else self.slot(selection.partner),
            MODES.index(selection.mode),
            selection.limit,
            -1 if draw is None else draw.rate_word,
            0 if draw is None else draw.salt,
            self._hashes.get(selection, -1),
            selection.keep,
            self._draw(selection),
            FOUND_CODES[self.groups.found.get(selection, "written")],
        )
        return padded((*self._operand(plain), *words), 24)

    @property
    def _selected(self) -> list[tuple[Selection, Operand]]:
        return list(zip(self.groups.selections, self.groups.selected, strict=True))

    def _draw(self, selection: Selection | None) -> int:
        """The place of a selection's draw among those that are shared, or -1."""
        draws = self.groups.draws
        return -1 if selection is None or selection.draw not in draws else draws.index(selection.draw)

    def _comparison_row(self, comparison: JointComparison) -> tuple[int, ...]:
        given = (comparison.first, comparison.second, comparison.first_scores, comparison.second_scores)
        operands = [word for operand in given for word in self._operand(operand)]
        slots = dict(comparison.slots)
        stems = COMPARISON_KINDS[comparison.kind]
        places = [self.slot(slots[stem]) if stem in slots else -1 for stem in stems]
        kind = list(COMPARISON_KINDS).index(comparison.kind)
        return padded((*operands, kind, *places), 40)

    # -- lanes and features

    def _widths(self) -> dict[int, int]:
        """Ids a row of the sparse features that are lanes, by place among the sparse ones."""
        return {
            lane.destination.index: lane.destination.width
            for lane in self.groups.lanes
            if lane.destination.kind == "ids"
        }

    def _lane_row(self, lane: Lane, form: int, places: Mapping[int, Place]) -> tuple[int, ...]:
        destination = lane.destination
        base, per_row, stride, dynamic, lengths, width, present = destination.index, 0, 1, -1, -1, 1, -1
        if destination.kind == "ids":
            place = places[destination.index]
            width, stride = destination.width, destination.width
            base = destination.position
            if place.ids_per_row_before is None:
                dynamic = destination.index
            else:
                base, per_row = base + place.base, place.ids_per_row_before
            present = place.lengths_row if self.layout.padded else -1
            if destination.position == 0 and self.layout.write_lengths:
                lengths = place.lengths_row
        elif destination.slot is not None:
            base = self.slot(destination.slot)
        head = (self.slot(lane.slot), DTYPE_CODES[lane.dtype], *self._range(lane.steps), 0)
        self.lane_slots.append(self.slot(lane.slot))
        return padded((*head, base, per_row, stride, dynamic, lengths, width, 0, 0, present, form), 16)

    def _add_features(self) -> None:
        widths, first = self._widths(), len(self.groups.raw_lists)
        entries = {
            stage.destination.index: first + number
            for number, stage in enumerate(self.groups.stages)
            if stage.destination.slot is None
        }
        index_of = {name: index for index, name in enumerate(self.names)}
        for number, block in enumerate(self.layout.blocks):
            for name in block.features:
                index = index_of[name]
                self.features.append((entries.get(index, -1), widths.get(index, 0), number, index))


def padded(words: Iterable[int], size: int) -> tuple[int, ...]:
    """A row of a table: the words, then zeros."""
    row = tuple(words)
    assert len(row) <= size, row
    return (*row, *([0] * (size - len(row))))


def _places(layout: OutputLayout, names: tuple[str, ...], widths: Mapping[int, int]) -> dict[int, Place]:
    """Each sparse feature's place, by its index among the sparse ones."""
    index_of = {name: index for index, name in enumerate(names)}
    places: dict[int, Place] = {}
    for number, block in enumerate(layout.blocks):
        before: int | None = 0
        for row, name in enumerate(block.features, start=block.lengths_row):
            index = index_of[name]
            places[index] = Place(block=number, lengths_row=row, base=block.base, ids_per_row_before=before)
            width = widths.get(index)
            before = None if before is None or width is None else before + width
    return places
