"""What each launch of the fused program does for each feature: rows, elements, bytes, element functions. Pure.

List lengths come from the graph's nodes (`rap_planner.work.node_lengths`), null shares from the workload. Besides the element functions of
the chains, `ops` counts what the kernels do around them, under names with a colon: `:lane` (a row of a lane), `:first` (a lane
finds the first element of a list), `:element`, `:find` and `:row` (an element of a stage; the search for its row; a row that ends among them),
`:select` and `:draw` (an element of a selection; its hash), `:pair` (of a comparison), `:chunk` (rows a scan takes at a time),
`:list` (of bases, which one program adds up).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rap_contract.graph import FeatureGraph
from rap_contract.profile import KernelSample, TileWork, Workload
from rap_contract.profile import Stage as StageName
from rap_planner.lengths import Lengths, at_most, crossed, grams, mean
from rap_planner.work import node_lengths

from rap_trainer.fusion.groups import Groups, Launch, rows_of_program
from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import JointComparison, Lane, Operand, Selection, Stage

ID_BYTES, NUMBER_BYTES, LENGTH_BYTES, FLAG_BYTES = 8, 4, 4, 1
DRAW_BITS = 53  # of a sample's hash


@dataclass(frozen=True, kw_only=True)
class EntryWork:
    """What a launch does for one feature."""

    feature: str
    num_bytes: float
    """Read and written."""
    ops: Counter[str]
    """Element functions applied, by name."""
    num_tiles: float
    """Pieces that programs take in turn."""

    @property
    def tile(self) -> TileWork:
        """One of its tiles, on the mean."""
        tiles = self.num_tiles or 1.0
        return TileWork(num_bytes=self.num_bytes / tiles, ops={name: n / tiles for name, n in self.ops.items()})


@dataclass(frozen=True, kw_only=True)
class LaunchWork:
    """What one launch does for a batch."""

    stage: StageName
    wave: int
    entries: tuple[EntryWork, ...]
    functions: tuple[str, ...] = ()
    """What the kernel is compiled for."""
    room: float = 0.0
    """Tiles that the wider ones of a bounded grid have room for, if they are wider: those of a small batch are not full."""

    @property
    def num_tiles(self) -> float:
        return max(1.0, sum(entry.num_tiles for entry in self.entries))

    def sample(self, launch: int, *, programs: int | None, seconds: float) -> KernelSample:
        """The launch, measured alone."""
        ops: Counter[str] = Counter()
        for entry in self.entries:
            ops.update(entry.ops)
        full = tiles = self.num_tiles
        if programs is not None and programs < tiles:
            tiles = max(tiles, self.room)
        num_bytes = sum(entry.num_bytes for entry in self.entries) / tiles
        costliest = max(self.entries, key=lambda entry: sum(entry.tile.ops.values()), default=None)
        return KernelSample(
            stage=self.stage,
            launch=launch,
            num_tiles=tiles,
            # What a tile has no rows for is not read, but its functions run as if.
            mean_tile=TileWork(num_bytes=num_bytes, ops={name: count / full for name, count in ops.items()}),
            critical_tile=TileWork() if costliest is None else costliest.tile,
            programs=programs,
            seconds=seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a batch."""

    rows: int
    node_lengths: Sequence[Lengths]
    """By node of the graph."""
    column_lengths: dict[str, Lengths]
    nullable: frozenset[str]
    null_ratios: Mapping[str, float] = field(default_factory=dict)
    """By column."""

    @classmethod
    def of(cls, graph: FeatureGraph, rows: int, workload: Workload, nullable: frozenset[str]) -> Sizes:
        """Of a graph whose columns are like this."""
        lengths = node_lengths(graph, workload)
        columns = {node.column: lengths[node.index] for node in graph.nodes if node.column is not None}
        for node in graph.nodes:
            if node.weights is not None and node.column is not None:
                columns[node.weights] = lengths[node.index]
        nulls = {name: workload.of(name).null_ratio for name in columns}
        return cls(rows=rows, node_lengths=lengths, column_lengths=columns, nullable=nullable, null_ratios=nulls)

    def mean(self, node: int) -> float:
        """Elements a row of a node."""
        return mean(self.node_lengths[node])

    def lengths(self, slot: Slot) -> Lengths:
        """Of the lists that a slot holds."""
        return self.column_lengths.get(slot.name, (1.0,)) if slot.node is None else self.node_lengths[slot.node]

    def flags(self, slot: Slot) -> int:
        """Bytes of an element's null flag."""
        return FLAG_BYTES if slot.node is None and slot.name in self.nullable else 0


def works_of(groups: Groups, sizes: Sizes) -> tuple[LaunchWork, ...]:
    """The work of each launch, in order."""
    return tuple(_work(launch, groups, sizes) for launch in groups.launches)


def _work(launch: Launch, groups: Groups, sizes: Sizes) -> LaunchWork:
    rows, tiles = sizes.rows, groups.tiles
    entries: list[EntryWork] = []
    skipped = len(groups.raw_lists)
    room = 0.0
    if launch.kernel == "lanes":
        entries = [_lane(lane, sizes, -(-rows // tiles.lane)) for lane in groups.lanes[launch.first : launch.end]]
        room = len(entries) * -(-rows // tiles.wide_lane) * tiles.wide_lane / tiles.lane
    elif launch.kernel == "values":
        stages = groups.stages[launch.first - skipped : launch.end - skipped]
        pieces = -(-rows // rows_of_program(launch, tiles))
        entries = [_stage(stage, sizes, pieces, general=launch.general and not launch.picked) for stage in stages]
    elif launch.kernel == "compare":
        compared = groups.comparisons[launch.first : launch.end]
        entries = [_comparison(each, sizes, rows) for each in compared]
    elif launch.draws:
        entries = [_draw(_nth(launch.features, n), rows, tiles.draw[1]) for n in range(launch.end - launch.first)]
    elif launch.kernel == "select":
        chosen = groups.selections[launch.first : launch.end]
        pieces = -(-rows // tiles.select[0])
        entries = [_selection(each, groups, _nth(launch.features, n), sizes, pieces) for n, each in enumerate(chosen)]
    else:
        entries = list(_counts(launch, sizes, tiles.scan))
    return LaunchWork(
        stage=launch.kernel,  # type: ignore[arg-type]  # the launches' kernels are the contract's stages
        wave=launch.wave,
        entries=tuple(entries),
        room=room,
        functions=(*launch.step_names, *launch.structures, *(["general"] if launch.general else [])),
    )


def _nth(features: Sequence[str], number: int) -> str:
    """A feature of a launch whose entries are shared: dealt in turn."""
    return features[number % len(features)] if features else ""


def _lane(lane: Lane, sizes: Sizes, tiles: int) -> EntryWork:
    rows = sizes.rows
    read = lane.dtype.num_bytes + sizes.flags(lane.slot) + (LENGTH_BYTES if lane.is_list else 0)
    written = ID_BYTES + FLAG_BYTES if lane.destination.kind == "ids" else NUMBER_BYTES
    ops = Counter({":lane": rows})
    if lane.is_list:
        ops[":first"] = rows
    for step in lane.steps:
        ops[step.name] += rows
    return EntryWork(feature=lane.feature, num_bytes=rows * (read + written), ops=ops, num_tiles=tiles)


def _stage(stage: Stage, sizes: Sizes, pieces: int, *, general: bool) -> EntryWork:
    """`pieces`: groups of rows that programs take in turn; `general`: elements may have to find their rows."""
    rows, operand = sizes.rows, stage.operand
    kept = at_most(_kept(operand, sizes), stage.limit_before)
    read = mean(kept)
    made = mean(at_most(_restructured(stage, kept, sizes), stage.limit_after))
    weights = NUMBER_BYTES if stage.weighted else 0
    written = ID_BYTES if stage.destination.slot is None else stage.destination.dtype.num_bytes
    num_bytes = read * (operand.dtype.num_bytes + sizes.flags(operand.slot) + weights) + made * (written + weights)
    ops = Counter({":element": int(rows * made), ":row": rows})
    if general and not stage.keeps_positions:
        ops[":find"] = int(rows * made)
    if stage.structure.kind not in ("same", "fill_rows", "null_rows"):
        ops[f":{stage.structure.kind}"] = int(
            rows * made * max(stage.structure.parameter, 1) if "gram" in stage.structure.kind else rows * made
        )
    for steps, count in ((stage.pre, read), (stage.post, made)):
        for step in steps:
            ops[step.name] += int(rows * count)
    return EntryWork(feature=stage.feature, num_bytes=rows * (num_bytes + 2 * LENGTH_BYTES), ops=ops, num_tiles=pieces)


def _kept(operand: Operand, sizes: Sizes) -> Lengths:
    """Elements that a fusion may read."""
    lengths, selection = sizes.lengths(operand.slot), operand.selection
    if selection is None:
        return lengths
    if selection.mode == "skip":
        left = 1.0 - sizes.null_ratios.get(operand.slot.name, 0.0)
        lengths = tuple(length * left for length in lengths)
    rate = 1.0 if selection.draw is None else min(1.0, selection.draw.rate_word / 2.0**DRAW_BITS)
    return tuple(min(min(length, selection.limit) * rate, selection.keep) for length in lengths)


def _restructured(stage: Stage, kept: Lengths, sizes: Sizes) -> Lengths:
    structure = stage.structure
    match structure.kind:
        case "ngram" | "windows":
            return grams(kept, structure.parameter)
        case "onehot":
            return tuple(length * structure.parameter for length in kept)
        case "cartesian":
            other = (1.0,) if structure.other is None else _kept(structure.other, sizes)
            return crossed(kept, other, structure.parameter)
        case _:
            return kept


def _draw(feature: str, rows: int, positions: int) -> EntryWork:
    """A draw for every row and position, which is gone through like an element; a flag and a place of each are written."""
    ops = Counter({":draw": rows * positions, ":select": rows * positions, ":row": rows})
    num_bytes = rows * (ID_BYTES + positions * (FLAG_BYTES + 1 / 8))
    return EntryWork(feature=feature, num_bytes=num_bytes, ops=ops, num_tiles=rows)


def _selection(selection: Selection, groups: Groups, feature: str, sizes: Sizes, tiles: int) -> EntryWork:
    lengths = sizes.lengths(selection.slot)
    row_bytes = sizes.rows * LENGTH_BYTES * 3
    elements = sizes.rows * mean(lengths)
    flags = FLAG_BYTES * (1 if selection.partner is None else 2)
    if selection in groups.found:
        nulls = elements * flags * (selection.mode == "skip")
        ops = Counter({":row": sizes.rows})
        return EntryWork(feature=feature, num_bytes=nulls + sizes.rows * ID_BYTES + row_bytes, ops=ops, num_tiles=tiles)
    ops = Counter({":select": int(elements), ":row": sizes.rows})
    if selection.draw is not None and selection.draw not in groups.draws:
        ops[":draw"] = int(sizes.rows * mean(at_most(lengths, selection.limit)))
    return EntryWork(
        feature=feature,
        num_bytes=elements * (flags + FLAG_BYTES) + row_bytes,
        ops=ops,
        num_tiles=tiles,
    )


def _comparison(comparison: JointComparison, sizes: Sizes, tiles: int) -> EntryWork:
    first, second = mean(_kept(comparison.first, sizes)), mean(_kept(comparison.second, sizes))
    rows = sizes.rows
    scores = sum(
        NUMBER_BYTES * mean(_kept(each, sizes))
        for each in (comparison.first_scores, comparison.second_scores)
        if each is not None
    )
    ops = Counter({":pair": int(rows * first * second), ":row": rows})
    ops.update({stem: int(rows * first) for stem, _ in comparison.slots})
    num_bytes = rows * ((first + second) * ID_BYTES + scores + 4 * LENGTH_BYTES + NUMBER_BYTES)
    return EntryWork(feature=comparison.feature, num_bytes=num_bytes, ops=ops, num_tiles=tiles)


def _counts(launch: Launch, sizes: Sizes, chunk: int) -> Iterator[EntryWork]:
    """A scan has a program for each list; bases are added up by one program, over a power of two of lists."""
    num = launch.end - launch.first
    if launch.kernel == "scan":
        ops = Counter({":chunk": -(-sizes.rows // chunk)})
        for number in range(num):
            num_bytes = 3 * LENGTH_BYTES * sizes.rows
            yield EntryWork(feature=_nth(launch.features, number), num_bytes=num_bytes, ops=ops, num_tiles=1.0)
        return
    together = 1 << max(num - 1, 0).bit_length()
    for number in range(num):
        ops = Counter({":list": together / num})
        feature = _nth(launch.features, number)
        yield EntryWork(feature=feature, num_bytes=4 * ID_BYTES, ops=ops, num_tiles=1 / num)
