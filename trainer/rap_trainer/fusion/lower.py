"""Lowers a feature graph to lanes, stages and comparisons. Pure: knows no device, no batch and no sizes.

A feature whose row always holds the same number of elements (from scalar columns) becomes one lane per
element, its position known at every op, so firstx and ngram cost nothing. Any other list becomes a stage.
A value that needs two changes of list structure, or that other ops refer to, passes through scratch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from rap_contract.graph import FeatureGraph, FeatureSpec, Node
from rap_contract.ops.local_hour import LocalHour
from rap_contract.types import Dtype

from rap_trainer.fusion.lower_lists import ListLowering
from rap_trainer.fusion.ops.encode import COMPARISONS, ENCODERS, Place
from rap_trainer.fusion.ops.step import Step
from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import Comparison, Destination, Lane, Lowered, Stage

Fusion = Lane | Stage | Comparison


def lower(graph: FeatureGraph, nullable: Collection[str], *, padded: bool = False) -> Lowered:
    """The fusions that compute every feature and the label of a graph.

    `nullable`: columns whose batches may hold nulls; for the others no null is looked for. `padded`: sparse
    features have at most one id a row and go to fixed places, so that they are lanes whatever their columns.
    """
    lowering = Lowering(graph, frozenset(nullable))
    for column, feature in enumerate_dense(graph):
        for position in range(feature.width):
            destination = Destination(kind="dense", index=column + position)
            lane = lowering.lane(feature.name, feature.node, position, destination)
            cast = (Step(name="to_float"),) if graph.nodes[feature.node].type.dtype.is_integer else ()
            lowering.outputs.append(replace(lane, steps=(*lane.steps, *cast)))
    for index, feature in enumerate(graph.sparse):
        if padded:
            lowering.add_padded(index, feature)
        else:
            lowering.add_sparse(index, feature)
    lowering.outputs.append(lowering.label())
    return Lowered(
        waves=(*(tuple(wave) for wave in lowering.waves if wave), tuple(lowering.outputs)),
        scratch=tuple(lowering.scratch.values()),
        num_sparse=len(graph.sparse),
        dense_width=graph.dense_width,
        weighted=graph.weighted,
    )


def enumerate_dense(graph: FeatureGraph) -> list[tuple[int, FeatureSpec]]:
    """Dense features with the first column each takes in the matrix."""
    at, placed = 0, []
    for feature in graph.dense:
        placed.append((at, feature))
        at += feature.width
    return placed


@dataclass
class Lowering:
    """The fusions found so far. Made for one call of `lower`."""

    graph: FeatureGraph
    nullable: frozenset[str]
    waves: list[list[Fusion]] = field(default_factory=list)
    outputs: list[Fusion] = field(default_factory=list)
    scratch: dict[int, Slot] = field(default_factory=dict)
    """By node."""
    level_of: dict[Slot, int] = field(default_factory=dict)
    """The wave that writes a scratch slot."""
    counted: set[int] = field(default_factory=set)
    """Nodes whose NaN a step counts already: only the first fusion that computes a node counts."""

    def node(self, index: int) -> Node:
        return self.graph.nodes[index]

    # -- outputs

    def add_sparse(self, index: int, feature: FeatureSpec) -> None:
        """The lanes or the stage of one sparse feature."""
        node = self.node(feature.node)
        width = node.type.width if node.type.is_list else 1
        final = self._in_range(feature)
        if width is not None and not node.weighted and self.is_static(node) and not self.may_be_null(node):
            for position in range(width):
                destination = Destination(kind="ids", index=index, position=position, width=width)
                lane = self.lane(feature.name, node.index, position, destination)
                self.outputs.append(replace(lane, steps=(*lane.steps, *final)))
            if width == 0:
                self.outputs.append(self._empty(index, feature))
            return
        stage = ListLowering(self, feature.name).stage(node, Destination(kind="ids", index=index))
        self.outputs.append(replace(stage, post=(*stage.post, *final)))

    def add_padded(self, index: int, feature: FeatureSpec) -> None:
        """The one lane of a sparse feature with at most one id a row."""
        node = self.node(feature.node)
        if node.type.is_list and not self.has_first(node):
            operand = ListLowering(self, feature.name).operand(node)
            lane = Lane(
                feature=feature.name,
                slot=operand.slot,
                dtype=operand.dtype,
                is_list=True,
                steps=(),
                destination=Destination(kind="ids", index=index),
            )
        else:
            lane = self.lane(feature.name, node.index, 0, Destination(kind="ids", index=index))
        self.outputs.append(replace(lane, steps=(*lane.steps, *self._in_range(feature))))

    def has_first(self, node: Node) -> bool:
        """Whether the first element of the node's list follows from the first of a column's, or from a number."""
        if node.column is not None or not node.type.is_list:
            return True
        op = node.op
        if op is None:
            return not {self.node(index).column for index in node.inputs} & self.nullable
        first = self.node(node.inputs[0])
        if op.stem == "fill_null" and first.column is None and self.may_be_null(first):
            return False
        keeps = op.stem in ENCODERS or getattr(op, "combine", "") == "concat" or getattr(op, "n", 0) > 0
        if op.stem in ("sample", "cartesian") or getattr(op, "combine", "") == "hash" or not keeps:
            return False
        return self.has_first(first)

    def _empty(self, index: int, feature: FeatureSpec) -> Lane:
        """A feature whose lists are always empty still has lengths."""
        destination = Destination(kind="ids", index=index, position=0, width=0)
        return Lane(
            feature=feature.name,
            slot=Slot(self.graph.label),
            dtype=self.graph.columns[self.graph.label].dtype,
            is_list=False,
            steps=(),
            destination=destination,
        )

    def label(self) -> Lane:
        """The label as float32."""
        value = self.graph.columns[self.graph.label]
        steps = (Step(name="to_float"),) if value.dtype.is_integer else ()
        return Lane(
            feature=self.graph.label,
            slot=Slot(self.graph.label),
            dtype=value.dtype,
            is_list=False,
            steps=steps,
            destination=Destination(kind="label"),
        )

    def _in_range(self, feature: FeatureSpec) -> tuple[Step, ...]:
        if feature.out_of_range != "zero" or feature.table is None:
            return ()
        return (Step(name="in_range", parameters=(feature.table.rows,)),)

    # -- lanes

    def is_static(self, node: Node) -> bool:
        """Whether every element of the node's list is a lane: all ops down to a scalar keep positions known."""
        if not node.type.is_list:
            return True
        op = node.op
        if op is None or node.type.width is None:
            return False
        if (
            op.stem in ENCODERS
            or op.stem == "firstx"
            or (op.stem == "ngram" and getattr(op, "combine", "") == "concat")
        ):
            return self.is_static(self.node(node.inputs[0]))
        return False

    def may_be_null(self, node: Node) -> bool:
        """Whether some batch may hold a null row of the node."""
        if node.column is not None:
            return node.column in self.nullable
        if not node.type.nullable:
            return False
        return any(self.may_be_null(self.node(index)) for index in node.inputs)

    def lane(self, feature: str, index: int, position: int, destination: Destination) -> Lane:
        """The lane that computes element `position` of a static node."""
        steps: list[Step] = []
        node = self.node(index)
        while node.column is None and not self.is_comparison(node):
            op, source = node.op, self.node(node.inputs[0])
            if op is None:  # a collapse that meets no null
                node = source
                continue
            if op.stem in ENCODERS:
                steps[:0] = self.encoded(node, position if node.type.is_list else None, feature)
            if op.stem == "onehot":
                position //= getattr(op, "classes")  # noqa: B009  # the registry types every op as Op
            elif op.stem == "ngram" and position > 0:
                window = min(getattr(op, "n"), source.type.width or 0)  # noqa: B009
                position = position // window + position % window
            node = source
        slot = Slot(node.column) if node.column is not None else self.compare(node, feature)
        return Lane(
            feature=feature,
            slot=slot,
            dtype=node.type.dtype,
            is_list=node.type.is_list,
            steps=tuple(steps),
            destination=destination,
        )

    def encoded(self, node: Node, position: int | None, feature: str) -> tuple[Step, ...]:
        """The steps of one op node."""
        assert node.op is not None
        source = self.node(node.inputs[0]).type
        counts = node.index not in self.counted
        self.counted.add(node.index)
        offset: Node | None = None
        if isinstance(node.op, LocalHour) and len(node.inputs) > 1:
            offset = self.node(node.inputs[1])
        place = Place(
            value=source,
            position=position,
            counts=counts,
            offset_dtype=None if offset is None else self.scalar_dtype(offset),
        )
        steps = ENCODERS[node.op.stem](node.op, place)
        if offset is None:
            return steps
        return (*steps[:-1], replace(steps[-1], slot=self.scalar_slot(offset, feature)))

    # -- scratch

    def is_comparison(self, node: Node) -> bool:
        return node.op is not None and node.op.stem in COMPARISONS

    def scalar_slot(self, node: Node, feature: str) -> Slot:
        """Where the numbers of a scalar node can be read, computed into scratch if it is not a column."""
        if node.column is not None:
            return Slot(node.column)
        if self.is_comparison(node):
            return self.compare(node, feature)
        if node.index not in self.scratch:
            slot = Slot(feature, node.index)
            dtype = self.scalar_dtype(node)
            lane = self.lane(feature, node.index, 0, Destination(kind="scratch", slot=slot, dtype=dtype))
            self.write(slot, node.index, lane, (lane.slot, *(s.slot for s in lane.steps if s.slot is not None)))
        return self.scratch[node.index]

    def scalar_dtype(self, node: Node) -> Dtype:
        """The type its slot holds: scratch holds integers as int64."""
        if node.column is not None or not node.type.dtype.is_integer:
            return node.type.dtype
        return Dtype.INT64

    def compare(self, node: Node, feature: str) -> Slot:
        """The scratch slot of a comparison's result, adding the comparison once."""
        if node.index not in self.scratch:
            slot = Slot(feature, node.index)
            destination = Destination(kind="scratch", slot=slot, dtype=Dtype.FLOAT32)
            comparison, reads = ListLowering(self, feature).comparison(node, destination)
            self.write(slot, node.index, comparison, reads)
        return self.scratch[node.index]

    def write(self, slot: Slot, node: int, fusion: Fusion, reads: tuple[Slot, ...]) -> None:
        """Adds a fusion that writes scratch, in the first wave after all it reads."""
        level = max((self.level_of[each] + 1 for each in reads if each.node is not None), default=0)
        while len(self.waves) <= level:
            self.waves.append([])
        self.waves[level].append(fusion)
        self.level_of[slot] = level
        self.scratch[node] = slot
