"""Fusion in the small: which fusions share a launch, how large tiles are, how the work is laid out.

Pure and deterministic. A wave takes at most eleven launches, whatever the number of features; kinds of work a wave
does not have take none. Raw lists are scanned with the first wave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from rap_contract.types import Dtype

from rap_trainer.fusion.bundles import bundled
from rap_trainer.fusion.draws import Found, shared_draws, ways_to_find
from rap_trainer.fusion.ops.step import Step
from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import (
    Comparison,
    Draw,
    JointComparison,
    Lane,
    LaneForm,
    Lowered,
    Operand,
    Selection,
    Stage,
    chain_of,
    operands_of,
)
from rap_trainer.fusion.words import COMPARISON_KINDS


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Elements a program handles at a time."""

    lane: int = 512
    """Rows of a lane."""
    columns: int = 8
    """Lanes of a bundle at most."""
    bundle_rows: int = 64
    """Rows of a bundle: few, and each element looks its column's parameters up for itself."""
    wide_lane: int = 2048
    """The same where the grid is bounded: a few large programs reach more bandwidth than a few small ones."""
    scan: int = 2048
    """Rows of a scan."""
    select: tuple[int, int] = (32, 128)
    """Rows and elements of a program that works on lists, which is one warp: a selection, or values."""
    kept: int = 512
    """Rows of a program on values that keep their places and need no rows."""
    long: int = 16
    """values: tiles of a group of rows, on average, from which several programs take turns with them."""
    draw: tuple[int, int] = (4, 128)
    """Rows of a draw that many selections share, and positions: the longest list it is made for."""
    least_shared: int = 8
    """Selections that must share a draw: it is made for all positions, of which a list of mean length has a sixth."""
    compare: int = 32
    """Elements of one list that meet half as many of the other at once; a program of one warp takes a row."""
    scan_warps: int = 8
    ahead: int = 2048
    """Rows ahead of a lane's tile whose lengths are added up at a time."""

    @classmethod
    def interpreted(cls) -> Tiles:
        """For Triton's interpreter, whose time grows with the tile; small batches still span several tiles."""
        return cls(
            lane=16,
            columns=4,
            bundle_rows=8,
            wide_lane=32,
            scan=16,
            select=(4, 8),
            kept=8,
            long=2,
            draw=(4, 32),
            least_shared=2,
            compare=8,
            ahead=16,
        )


STEP_COST: Mapping[str, int] = {
    "sigrid_hash": 6,
    "sigrid_hash_wide": 8,
    "positive_modulus_wide": 3,
    "bucketize": 4,
    "bucketize_int": 4,
    "boxcox": 3,
    "logit": 3,
}
"""Relative cost of element functions, for the order of work; others cost 1 (instructions of the compiled kernels)."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel launch: what it does, for `rap plan` and for the runner."""

    kernel: str
    """lanes, scan, select, bases, values, compare."""
    wave: int
    first: int
    """First table row it takes."""
    end: int
    features: tuple[str, ...]
    """Features it works for."""
    step_names: tuple[str, ...] = ()
    """Element functions it is compiled for."""
    chains: tuple[tuple[str, ...], ...] = ()
    """values: the different chains of them; its table rows say by number which ones are theirs."""
    forms: tuple[LaneForm, ...] = ()
    """lanes: the same of whole lanes."""
    bundles: tuple[range, ...] = ()
    """lanes: first ones of its table rows that are worked on together."""
    first_bundle: int = 0
    structures: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    """values: of the lists that are read."""
    kinds: tuple[str, ...] = ()
    """values: where results are written, as keys of `words.KIND_CODES`."""
    float64: bool = False
    general: bool = False
    """values: some stage must find the row of each element."""
    picked: bool = False
    """values: each element is the next that a selection picked."""
    draws: bool = False
    """select: its rows are the draws that selections share."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Everything grouped: rows of the device tables in order, and the launches over them."""

    lanes: tuple[Lane, ...]
    raw_lists: tuple[Operand, ...]
    """Raw lists whose offsets are needed; the first entries of the list table."""
    stages: tuple[Stage, ...]
    """The entries after them."""
    selections: tuple[Selection, ...]
    selected: tuple[Operand, ...]
    """The operand of each selection."""
    draws: tuple[Draw, ...]
    """That selections share."""
    found: Mapping[Selection, Found]
    """How picks are found of selections whose picks need not be written down."""
    comparisons: tuple[JointComparison, ...]
    launches: tuple[Launch, ...]
    tiles: Tiles


def rows_of_program(launch: Launch, tiles: Tiles) -> int:
    """Rows of lists that a program of a selection or of values takes."""
    return tiles.kept if launch.kernel == "values" and not launch.general else tiles.select[0]


def group(lowered: Lowered, *, tiles: Tiles) -> Groups:
    """The launches that run a lowered graph."""
    builder = _Builder(tiles)
    builder.raw_lists = _raw_lists(lowered)
    builder.draw(lowered)
    for number, wave in enumerate(lowered.waves):
        builder.add(number, wave, last=number + 1 == len(lowered.waves))
    return builder.groups()


def steps_of(fusion: Lane | Stage | Comparison) -> tuple[Step, ...]:
    """All steps of a fusion."""
    if isinstance(fusion, Lane):
        return fusion.steps
    return (*fusion.pre, *fusion.post) if isinstance(fusion, Stage) else ()


def cost(lane: Lane) -> int:
    """Relative cost of a tile of a lane."""
    return 2 + sum(STEP_COST.get(step.name, 1) for step in lane.steps)


def joined(comparisons: Iterable[Comparison]) -> tuple[JointComparison, ...]:
    """Comparisons that read the same lists as one, in order of their first."""
    found: dict[tuple[object, ...], JointComparison] = {}
    for each in comparisons:
        assert each.destination.slot is not None
        kind = next(kind for kind, stems in COMPARISON_KINDS.items() if each.stem in stems)
        slot = ((each.stem, each.destination.slot),)
        key: tuple[object, ...] = (kind, each.first, each.second, each.first_scores, each.second_scores)
        while key in found and each.stem in dict(found[key].slots):  # the same result wanted twice
            key = (*key, None)
        if key in found:
            found[key] = replace(found[key], slots=found[key].slots + slot)
        else:
            found[key] = JointComparison(
                feature=each.feature,
                kind=kind,  # type: ignore[arg-type]  # the keys of COMPARISON_KINDS are its literals
                first=each.first,
                second=each.second,
                first_scores=each.first_scores,
                second_scores=each.second_scores,
                slots=slot,
            )
    return tuple(found.values())


def _raw_lists(lowered: Lowered) -> tuple[Operand, ...]:
    found: dict[Slot, Operand] = {}
    for wave in lowered.waves:
        for fusion in wave:
            if isinstance(fusion, Stage) and fusion.keeps_positions:
                continue
            for operand in operands_of(fusion):
                if operand.is_list and operand.slot.node is None:
                    found.setdefault(operand.slot, Operand(slot=operand.slot, dtype=operand.dtype))
    return tuple(found.values())


class _Builder:
    """Groups being made. Order within a launch: as lowered, but selections last and costly lanes first."""

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self.raw_lists: tuple[Operand, ...] = ()
        self.lanes: list[Lane] = []
        self.num_bundles = 0
        self.stages: list[Stage] = []
        self.selections: dict[Selection, Operand] = {}
        self.draws: tuple[Draw, ...] = ()
        self.found: Mapping[Selection, Found] = {}
        self.comparisons: list[JointComparison] = []
        self.launches: list[Launch] = []

    def draw(self, lowered: Lowered) -> None:
        """The launch of the draws that selections share."""
        self.draws = shared_draws(lowered, self.tiles.least_shared)
        self.found = ways_to_find(lowered, self.draws)
        drawing = [
            fusion
            for wave in lowered.waves
            for fusion in wave
            if any(each.selection is not None and each.selection.draw in self.draws for each in operands_of(fusion))
        ]
        if drawing:
            names = tuple(dict.fromkeys(fusion.feature for fusion in drawing))
            end = len(self.draws)
            self.launches.append(Launch(kernel="select", wave=0, first=0, end=end, features=names, draws=True))

    def add(self, number: int, wave: tuple[Lane | Stage | Comparison, ...], *, last: bool) -> None:
        """The launches of one wave; the last one's place the lists of all."""
        stages = [fusion for fusion in wave if isinstance(fusion, Stage)]
        plain = sorted((stage for stage in stages if not _selections(stage)), key=_kind, reverse=True)
        selecting = sorted((stage for stage in stages if _selections(stage)), key=_kind)
        comparisons = [fusion for fusion in wave if isinstance(fusion, Comparison)]
        begin = len(self.raw_lists) + len(self.stages)
        scan_from = 0 if number == 0 else begin
        self._scan(number, scan_from, begin + len(plain), plain)
        self._select(number, (*selecting, *comparisons))
        self._scan(number, begin + len(plain), begin + len(stages), selecting)
        self.stages += [*plain, *selecting]
        if last and self.stages:
            skipped = len(self.raw_lists)
            end, names = skipped + len(self.stages), _features(self.stages)
            self.launches.append(Launch(kernel="bases", wave=number, first=skipped, end=end, features=names))
        first = begin
        for kind, same_kind in groupby([*plain, *selecting], key=_kind):
            together = list(same_kind)
            self.launches.append(self._values(number, first, together, kind))
            first += len(together)
        if comparisons:
            first = len(self.comparisons)
            self.comparisons += joined(comparisons)
            end = len(self.comparisons)
            features = _features(comparisons)
            self.launches.append(Launch(kernel="compare", wave=number, first=first, end=end, features=features))
        lanes = [fusion for fusion in wave if isinstance(fusion, Lane)]
        for float64 in (False, True):
            self._lanes(number, [lane for lane in lanes if (lane.dtype is Dtype.FLOAT64) == float64], float64=float64)

    def _scan(self, wave: int, first: int, end: int, stages: list[Stage]) -> None:
        if end > first:
            structures = tuple(sorted({stage.structure.kind for stage in stages}))
            self.launches.append(
                Launch(
                    kernel="scan", wave=wave, first=first, end=end, features=_features(stages), structures=structures
                )
            )

    def _select(self, wave: int, fusions: tuple[Stage | Comparison, ...]) -> None:
        first = len(self.selections)
        for fusion in fusions:
            for operand in operands_of(fusion):
                if operand.selection is not None:
                    self.selections.setdefault(operand.selection, operand)
        end = len(self.selections)
        if end > first:
            self.launches.append(Launch(kernel="select", wave=wave, first=first, end=end, features=_features(fusions)))

    def _values(self, wave: int, first: int, stages: list[Stage], kind: int) -> Launch:
        return Launch(
            kernel="values",
            wave=wave,
            first=first,
            end=first + len(stages),
            features=_features(stages),
            step_names=tuple(sorted({step.name for stage in stages for step in steps_of(stage)})),
            chains=tuple(sorted({chain_of(steps) for stage in stages for steps in (stage.pre, stage.post)})),
            structures=tuple(sorted({stage.structure.kind for stage in stages})),
            dtypes=tuple(sorted({operand.dtype for stage in stages for operand in operands_of(stage)})),
            kinds=tuple(sorted({stage.destination.written for stage in stages})),
            float64=any(stage.operand.dtype is Dtype.FLOAT64 for stage in stages),
            general=any(not stage.keeps_positions for stage in stages),
            picked=kind == PICKED,
        )

    def _lanes(self, wave: int, lanes: list[Lane], *, float64: bool) -> None:
        if not lanes:
            return
        bundles = bundled(lanes, self.tiles.columns)
        together = {id(lane) for bundle in bundles for lane in bundle}
        alone = sorted((lane for lane in lanes if id(lane) not in together), key=cost, reverse=True)
        lanes = [*(lane for bundle in bundles for lane in bundle), *alone]
        first = len(self.lanes)
        self.lanes += lanes
        bounds = accumulate((len(bundle) for bundle in bundles), initial=first)
        names = tuple(sorted({step.name for lane in lanes for step in lane.steps}))
        self.launches.append(
            Launch(
                kernel="lanes",
                wave=wave,
                first=first,
                end=len(self.lanes),
                features=_features(lanes),
                step_names=names,
                forms=tuple(sorted({lane.form for lane in lanes})),
                bundles=tuple(range(begin, end) for begin, end in pairwise(bounds)),
                first_bundle=self.num_bundles,
                float64=float64,
            )
        )
        self.num_bundles += len(bundles)

    def groups(self) -> Groups:
        return Groups(
            lanes=tuple(self.lanes),
            raw_lists=self.raw_lists,
            stages=tuple(self.stages),
            selections=tuple(self.selections),
            selected=tuple(self.selections.values()),
            draws=self.draws,
            found=self.found,
            comparisons=tuple(self.comparisons),
            launches=tuple(self.launches),
            tiles=self.tiles,
        )


SIMPLE, PICKED, MOVING = range(3)


def _kind(stage: Stage) -> int:
    """MOVING: elements' places need arithmetic with other lengths, which takes twice the registers."""
    if stage.keeps_picks:
        return PICKED
    return SIMPLE if stage.structure.kind in ("same", "fill_rows", "null_rows") else MOVING


def _selections(stage: Stage) -> bool:
    return any(operand.selection is not None for operand in operands_of(stage))


def _features(
    fusions: tuple[Lane | Stage | Comparison, ...] | list[Stage] | list[Lane] | list[Comparison],
) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fusion.feature for fusion in fusions))
