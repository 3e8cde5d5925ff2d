"""Lowers lists: what a stage or a comparison reads, and the ops between. Part of `lower`.

Walking a chain from its end, ops with an element function become steps, firstx a limit, and the first
change of structure met becomes the stage's; before a second one the value passes through scratch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

from rap_contract.graph import Node
from rap_contract.ops.cartesian import Cartesian
from rap_contract.ops.cosine import Cosine
from rap_contract.ops.firstx import Firstx
from rap_contract.ops.ngram import Ngram
from rap_contract.ops.onehot import Onehot
from rap_contract.ops.sample import Sample
from rap_contract.types import Dtype

from rap_trainer.fusion.ops.encode import ENCODERS
from rap_trainer.fusion.ops.step import Step
from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import (
    NO_LIMIT,
    Comparison,
    Destination,
    Draw,
    Operand,
    Selection,
    Stage,
    Structure,
)


class Lowering(Protocol):
    """What the lowering of lists asks of that of everything else."""

    nullable: frozenset[str]
    scratch: dict[int, Slot]

    def node(self, index: int) -> Node: ...

    def may_be_null(self, node: Node) -> bool: ...

    def encoded(self, node: Node, position: int | None, feature: str) -> tuple[Step, ...]: ...

    def scalar_slot(self, node: Node, feature: str) -> Slot: ...

    def scalar_dtype(self, node: Node) -> Dtype: ...

    def write(self, slot: Slot, node: int, fusion: Stage, reads: tuple[Slot, ...]) -> None: ...


@dataclass
class _Walk:
    """A stage as far as its chain has been walked, from the end."""

    post: list[Step] = field(default_factory=list)
    limit_after: int = NO_LIMIT
    structure: Structure | None = None
    sample: Sample | None = None
    pre: list[Step] = field(default_factory=list)
    limit_before: int = NO_LIMIT

    def add(self, steps: tuple[Step, ...]) -> None:
        segment = self.post if self.structure is None and self.sample is None else self.pre
        segment[:0] = steps

    def limit(self, n: int) -> None:
        if self.structure is None and self.sample is None:
            self.limit_after = min(self.limit_after, n)
        else:
            self.limit_before = min(self.limit_before, n)

    @property
    def changed(self) -> bool:
        return self.structure is not None or self.sample is not None


class ListLowering:
    """Lowers the lists of one feature."""

    def __init__(self, lowering: Lowering, feature: str) -> None:
        self.lowering = lowering
        self.feature = feature

    def stage(self, node: Node, destination: Destination) -> Stage:
        """The stage that computes a list node."""
        walk = _Walk()
        end = node
        while True:
            if node.column is not None or node.collapse is not None or not node.type.is_list:
                break
            if self._structure(node, walk):
                break
            node = self.lowering.node(node.inputs[0])
        return Stage(
            feature=self.feature,
            operand=self._operand(node, walk),
            pre=tuple(walk.pre),
            limit_before=NO_LIMIT if walk.sample is not None else walk.limit_before,
            structure=walk.structure or Structure(),
            limit_after=walk.limit_after,
            post=tuple(walk.post),
            destination=destination,
            weighted=end.weighted,
        )

    def _structure(self, node: Node, walk: _Walk) -> bool:
        """Takes the op of `node` into the walk; True if the stage must begin with the node's value instead."""
        op = node.op
        assert op is not None
        source = self.lowering.node(node.inputs[0])
        if isinstance(op, Firstx):
            walk.limit(op.n)
            return False
        if walk.limit_after <= 1 and not walk.changed and self._keeps_first(node, walk):
            return False
        change = self._change(node, source)
        if change is not None or isinstance(op, Sample):
            if walk.changed:
                return True
            if isinstance(op, Sample):
                walk.sample = op
            else:
                walk.structure = change
        if op.stem in ENCODERS and not (change is not None and change.kind in ("fill_rows",)):
            steps = self.lowering.encoded(node, None, self.feature)
            if change is not None and change.kind == "onehot":
                walk.post[:0] = steps[-1:]
                walk.pre[:0] = steps[:-1]
            elif op.stem == "enumerate" and walk.sample is not None:
                return True
            else:
                walk.add(steps)
        elif change is not None and change.kind == "fill_rows":
            walk.post[:0] = self.lowering.encoded(node, None, self.feature)
        return False

    def _keeps_first(self, node: Node, walk: _Walk) -> bool:
        """Whether, with only first elements wanted, the op's first element follows from its input's first."""
        if isinstance(node.op, Ngram) and node.op.combine == "concat":
            return True
        if isinstance(node.op, Onehot):
            walk.add(self.lowering.encoded(node, 0, self.feature))
            return self.lowering.node(node.inputs[0]).type.is_list
        return False

    def _change(self, node: Node, source: Node) -> Structure | None:
        """The change of structure an op makes, or None."""
        op = node.op
        if isinstance(op, Ngram):
            return Structure(kind="windows" if op.combine == "hash" else "ngram", parameter=op.n)
        if isinstance(op, Onehot):
            return Structure(kind="onehot", parameter=op.classes)
        if isinstance(op, Cartesian):
            other = self.operand(self.lowering.node(node.inputs[1]))
            return Structure(kind="cartesian", parameter=op.max, other=other)
        if op is not None and op.stem == "fill_null" and source.column is None and source.type.nullable:
            return Structure(kind="fill_rows") if source.type.is_list else None
        if op is not None and op.stem == "local_hour" and len(node.inputs) > 1 and node.type.is_list:
            offset = self.lowering.node(node.inputs[1])
            slot = self.lowering.scalar_slot(offset, self.feature)
            other = Operand(slot=slot, dtype=self.lowering.scalar_dtype(offset), is_list=False)
            return Structure(kind="null_rows", other=other)
        return None

    def _operand(self, node: Node, walk: _Walk) -> Operand:
        """What the stage reads: `node`, with the walk's sample drawn from it."""
        operand = self.operand(node)
        selection = operand.selection
        if walk.sample is not None:
            selection = replace(
                selection or Selection(slot=operand.slot),
                limit=walk.limit_before,
                draw=Draw(salt=walk.sample.salt, rate_word=math.ceil(walk.sample.rate * 2**53)),
            )
        if selection is not None and selection.packs and walk.structure is None:
            selection = replace(selection, keep=walk.limit_after)
        return replace(operand, selection=selection)

    def operand(self, node: Node) -> Operand:
        """A list node as something to read: a column, a column without its nulls, or scratch."""
        if node.collapse is not None:
            column, *partners = (self.lowering.node(index) for index in node.inputs)
            assert column.column is not None
            partner = Slot(partners[0].column) if partners and partners[0].column is not None else None
            if not {column.column, None if partner is None else partner.name} & self.lowering.nullable:
                return self._column(column, None)
            return self._column(column, Selection(slot=Slot(column.column), partner=partner, mode=node.collapse))
        if node.column is not None and node.type.is_list:
            return self._column(node, None)
        if not node.type.is_list:
            slot = self.lowering.scalar_slot(node, self.feature)
            selection = Selection(slot=slot, mode="propagate") if self.lowering.may_be_null(node) else None
            return Operand(slot=slot, dtype=self.lowering.scalar_dtype(node), is_list=False, selection=selection)
        return self._shortened(node) or self._computed(node)

    def _shortened(self, node: Node) -> Operand | None:
        """The first elements of a column's lists, which need no scratch; None for any other list."""
        limit, source = NO_LIMIT, node
        while isinstance(source.op, Firstx):
            limit, source = min(limit, source.op.n), self.lowering.node(source.inputs[0])
        if source is node or (source.column is None and source.collapse is None) or not source.type.is_list:
            return None
        operand = self.operand(source)
        selection = operand.selection or Selection(slot=operand.slot)
        return replace(operand, selection=replace(selection, keep=min(limit, selection.keep)))

    def _column(self, node: Node, selection: Selection | None) -> Operand:
        assert node.column is not None
        weights = None if node.weights is None else Slot(node.weights)
        return Operand(slot=Slot(node.column), dtype=node.type.dtype, selection=selection, weights=weights)

    def _computed(self, node: Node) -> Operand:
        """A computed list, in scratch; integers as int64."""
        dtype = Dtype.INT64 if node.type.dtype.is_integer else node.type.dtype
        if node.index not in self.lowering.scratch:
            slot = Slot(self.feature, node.index)
            stage = self.stage(node, Destination(kind="scratch", slot=slot, dtype=dtype))
            self.lowering.write(slot, node.index, stage, _reads(stage))
        slot = self.lowering.scratch[node.index]
        weights = Slot(f"{slot.name}/weights", node.index) if node.weighted else None
        return Operand(slot=slot, dtype=dtype, weights=weights)

    def comparison(self, node: Node, destination: Destination) -> tuple[Comparison, tuple[Slot, ...]]:
        """The comparison of an op node, and the slots it reads."""
        op = node.op
        assert op is not None
        first = self.operand(self.lowering.node(node.inputs[0]))
        others = {
            name: self.operand(self.lowering.node(index))
            for name, index in zip(node.references, node.inputs[1:], strict=True)
        }
        first_scores = others[op.id_scores] if isinstance(op, Cosine) else None
        second_scores = others[op.match_scores] if isinstance(op, Cosine) else others.get(getattr(op, "scores", ""))
        second = others[getattr(op, "match")]  # noqa: B009  # every comparing op has it
        comparison = Comparison(
            feature=self.feature,
            stem=op.stem,
            first=first,
            second=second,
            first_scores=first_scores,
            second_scores=second_scores,
            destination=destination,
        )
        reads = tuple(each.slot for each in (first, second, first_scores, second_scores) if each is not None)
        return comparison, reads


def _reads(stage: Stage) -> tuple[Slot, ...]:
    other = stage.structure.other
    steps = (step.slot for step in (*stage.pre, *stage.post) if step.slot is not None)
    return (stage.operand.slot, *steps, *(() if other is None else (other.slot,)))
