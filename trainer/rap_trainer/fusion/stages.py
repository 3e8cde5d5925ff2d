"""What a feature graph is lowered to: lanes, stages and comparisons, each one vertical fusion. Values only.

Shapes: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rap_contract.types import Dtype

from rap_trainer.fusion.ops.step import Step
from rap_trainer.fusion.slot import Slot

NO_LIMIT = 2**31 - 1  # firstx takes at most this many elements
POSITIONAL = frozenset({"enumerate", "local_hour_column"})  # element functions that read position or row


def chain_of(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """A chain's element functions, without their parameters."""
    return tuple(step.name for step in steps)


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where one number a row, or a list a row, is written."""

    kind: Literal["dense", "label", "ids", "scratch"]
    index: int = 0
    """dense: column of the matrix; ids: place of the feature among the sparse ones."""
    slot: Slot | None = None
    """scratch: the buffer."""
    position: int = 0
    """ids: place in the row's list, of a lane."""
    width: int = 1
    """ids: length of the row's list, of a lane."""
    dtype: Dtype = Dtype.INT64
    """scratch: its type."""

    @property
    def written(self) -> str:
        """A key of `words.KIND_CODES`."""
        return self.kind if self.slot is None else self.dtype.value


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One number a row from one number a row: a whole chain in registers, no offsets in memory."""

    feature: str
    slot: Slot
    dtype: Dtype
    is_list: bool
    """The number is the first element of a list; without one the row has no number."""
    steps: tuple[Step, ...]
    destination: Destination

    @property
    def form(self) -> LaneForm:
        return LaneForm(
            chain=chain_of(self.steps), dtype=self.dtype, kind=self.destination.written, is_list=self.is_list
        )


class LaneForm(NamedTuple):
    """What a kernel is compiled for: everything of a lane but parameters and places."""

    chain: tuple[str, ...]
    dtype: Dtype
    kind: str
    is_list: bool


class Draw(NamedTuple):
    """What decides of a row and a position whether a sample takes the element there."""

    salt: int
    rate_word: int
    """It is taken if its 53-bit hash is below this."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which elements of a list remain: nulls collapsed, a sample drawn. Null rows count -1."""

    slot: Slot
    partner: Slot | None = None
    """A parallel list whose null elements count too."""
    mode: Literal["propagate", "skip", "none"] = "none"
    limit: int = NO_LIMIT
    """Elements per row that reach the sample."""
    draw: Draw | None = None
    """The sample; None: all that reach it."""
    keep: int = NO_LIMIT
    """Elements per row that remain, after the sample."""

    @property
    def packs(self) -> bool:
        """Whether what remains is written down, place by place; else only null rows are found."""
        return self.mode == "skip" or self.draw is not None


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A list to read: a slot, and which of its elements remain."""

    slot: Slot
    dtype: Dtype
    is_list: bool = True
    selection: Selection | None = None
    weights: Slot | None = None


StructureKind = Literal["same", "ngram", "windows", "onehot", "cartesian", "fill_rows", "null_rows"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The one change of list structure a stage may hold; firstx is a limit before and after it."""

    kind: StructureKind = "same"
    parameter: int = 0
    """ngram, windows: n; onehot: classes; cartesian: most pairs."""
    other: Operand | None = None
    """cartesian: the second list; null_rows: a number a row whose nulls make rows null."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A list a row from a list a row: steps, one structure, steps; one read and one write an element."""

    feature: str
    operand: Operand
    pre: tuple[Step, ...]
    limit_before: int
    structure: Structure
    limit_after: int
    post: tuple[Step, ...]
    destination: Destination
    weighted: bool

    @property
    def keeps_positions(self) -> bool:
        """Element e of the result is element e of the source, and no step asks for its row or position."""
        unlimited = self.limit_before == NO_LIMIT and self.limit_after == NO_LIMIT
        return self.structure.kind == "same" and unlimited and self.operand.selection is None and not self._placed

    @property
    def keeps_picks(self) -> bool:
        """Element e of a group of rows is the e-th that the selection picked there."""
        selection = self.operand.selection
        if selection is None or not self.operand.is_list or not selection.packs or selection.mode == "propagate":
            return False
        limits = self.limit_before == NO_LIMIT and self.limit_after >= selection.keep
        return self.structure.kind == "same" and limits and not self._placed

    @property
    def _placed(self) -> bool:
        return any(step.name in POSITIONAL for step in (*self.pre, *self.post))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One float32 a row from two lists of ids and their scores."""

    feature: str
    stem: str
    first: Operand
    second: Operand
    first_scores: Operand | None
    second_scores: Operand | None
    destination: Destination


@dataclass(frozen=True, kw_only=True)
class JointComparison:
    """Comparisons of one kind over the same lists: one pass over the pairs of elements gives all results."""

    feature: str
    """The first that needs it."""
    kind: Literal["ids", "scores", "sums"]
    first: Operand
    second: Operand
    first_scores: Operand | None
    second_scores: Operand | None
    slots: tuple[tuple[str, Slot], ...]
    """(stem, where its result goes)."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A graph as fusions, in waves: each wave reads only columns and what earlier waves wrote."""

    waves: tuple[tuple[Lane | Stage | Comparison, ...], ...]
    """The last wave writes the outputs, the others scratch."""
    scratch: tuple[Slot, ...]
    num_sparse: int
    dense_width: int
    weighted: bool

    @property
    def outputs(self) -> tuple[Lane | Stage | Comparison, ...]:
        return self.waves[-1]


def operands_of(fusion: Lane | Stage | Comparison) -> tuple[Operand, ...]:
    """The lists a fusion reads by offsets."""
    if isinstance(fusion, Lane):
        return ()
    if isinstance(fusion, Comparison):
        given = (fusion.first, fusion.second, fusion.first_scores, fusion.second_scores)
        return tuple(operand for operand in given if operand is not None)
    other = fusion.structure.other
    return (fusion.operand,) if other is None else (fusion.operand, other)
