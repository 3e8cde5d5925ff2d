"""`FusedProgram`: a feature graph as fused kernels, with the contract of `rap_trainer.program.Program`.

It plans again only when a batch needs more room than was provided or first holds nulls in a column. A captured
step gives capacities and nullable columns beforehand, binds its buffers once and calls `launch`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from rap_contract.graph import FeatureGraph
from torchrec import KeyedJaggedTensor

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.fusion.binding import Binder, Binding
from rap_trainer.fusion.buffers import DeviceTables, Outputs, Scratch
from rap_trainer.fusion.groups import Groups, Tiles, group
from rap_trainer.fusion.layout import OutputLayout
from rap_trainer.fusion.lower import lower
from rap_trainer.fusion.parts import Part, in_parts
from rap_trainer.fusion.runner import Runner
from rap_trainer.fusion.sizes import Sizes
from rap_trainer.fusion.stages import Lane, Lowered
from rap_trainer.fusion.tables import Tables
from rap_trainer.program.columns import BatchError

ROOM = 1.25  # capacity made for a list column over the largest batch seen: a few re-plans, then none
MAX_GROWTH = 64  # times an overflowing guess may double before the program gives up


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a plan is made for."""

    batch_size: int
    """Rows of a batch at most."""
    capacities: Mapping[str, int] = field(default_factory=dict)
    """Elements a batch holds at most, of each list column."""
    nullable: frozenset[str] = frozenset()
    """Columns that may come with null flags."""
    growth: int = 1
    """Factor on the room for results whose size no bound is known of (cartesian)."""


@dataclass(frozen=True, kw_only=True)
class _Plan:
    limits: Limits
    lowered: Lowered
    groups: Groups
    binder: Binder
    runner: Runner
    ids_capacity: int


class FusedProgram:
    """The fused features of a job on one device. Not thread-safe."""

    def __init__(
        self,
        graph: FeatureGraph,
        device: torch.device,
        *,
        limits: Limits,
        layout: OutputLayout | None = None,
    ) -> None:
        """Raises ValueError if the layout does not place each sparse feature once."""
        self.graph = graph
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device = device
        self.layout = layout or OutputLayout.plain(graph)
        self.layout.check(graph)
        self.inputs: tuple[str, ...] = tuple(dict.fromkeys((*graph.inputs, graph.label)))
        self._weighted = {(node.column, node.weights) for node in graph.nodes if node.column and node.weights}
        self._tiles = Tiles() if device.type == "cuda" else Tiles.interpreted()
        self._plan = self._made(limits)

    @property
    def groups(self) -> Groups:
        """What shares which launch."""
        return self._plan.groups

    @property
    def limits(self) -> Limits:
        """What the current plan is made for."""
        return self._plan.limits

    @property
    def is_static(self) -> bool:
        """Whether every sparse feature always holds the same number of ids."""
        return all(stage.destination.slot is not None for stage in self.groups.stages)

    # -- the captured step's way

    def bind(self, raw: RawBatch) -> Binding:
        """A batch's addresses on the device; raises BatchError if the batch does not fit the plan."""
        return self._plan.binder.bind(raw)

    @property
    def num_kernels(self) -> int:
        """Launches of a batch."""
        return len(self.groups.launches)

    def in_parts(self, parts: Sequence[Part]) -> FusedProgram:
        """The program with its launches in these parts, over the same buffers. Raises ValueError with the first that is none."""
        twin = copy.copy(self)
        groups = in_parts(self.groups, parts)
        runner = replace(self._plan.runner, launches=groups.launches)
        twin._plan = replace(self._plan, groups=groups, runner=runner)
        return twin

    def launch_kernel(
        self, number: int, binding: Binding, outputs: Outputs, *, max_programs: int | None = None
    ) -> None:
        """Enqueues one of a batch's launches; they depend on each other in order."""
        self._plan.runner.run_one(number, binding, outputs, max_programs=max_programs)

    def launch(self, binding: Binding, outputs: Outputs, *, max_programs: int | None = None) -> None:
        """Enqueues the kernels on the current stream: no allocation, no wait, no read. At most `max_programs` a grid."""
        self._plan.runner.run(binding, outputs, max_programs=max_programs)

    def new_outputs(
        self,
        *,
        dense_BD: torch.Tensor | None = None,
        ids_N: torch.Tensor | None = None,
        labels_B: torch.Tensor | None = None,
        lengths_FB: torch.Tensor | None = None,
        weights_N: torch.Tensor | None = None,
        present_BF: torch.Tensor | None = None,
    ) -> Outputs:
        """Outputs in buffers of the caller's, or new ones filled with zeros where none is given."""
        given = {
            "dense_BD": dense_BD,
            "ids_N": ids_N,
            "labels_B": labels_B,
            "lengths_FB": lengths_FB,
            "weights_N": weights_N,
            "present_BF": present_BF,
        }
        return replace(self._outputs(torch.zeros), **{name: each for name, each in given.items() if each is not None})

    def _outputs(self, make: Callable[..., torch.Tensor]) -> Outputs:
        """New outputs; `make` is torch.zeros, or torch.empty where kernels write all that is read."""
        rows, num, device = self.limits.batch_size, max(self._plan.ids_capacity, 1), self.device
        F = len(self.graph.sparse)
        return Outputs(
            dense_BD=make(rows, self.graph.dense_width, device=device),
            labels_B=make(rows, device=device),
            ids_N=make(num, dtype=torch.int64, device=device),
            weights_N=make(num, device=device) if self.graph.weighted else None,
            lengths_FB=make(F * rows, dtype=torch.int32, device=device),
            present_BF=None,
            block_totals_P=torch.zeros(len(self.layout.blocks), dtype=torch.int64, device=device),
            overflow=torch.zeros(1, dtype=torch.int32, device=device),
            counters=torch.zeros(1, dtype=torch.int64, device=device),
        )

    # -- the eager runtime's way

    def run(self, raw: RawBatch, *, max_programs: int | None = None) -> ModelBatch:
        """The model's input of a batch, in the plain layout. Raises BatchError, naming the column.

        Waits for the device once if lists vary in length, as PyTorch must know a tensor's size; never otherwise.
        The outputs are new tensors of the current stream: whoever reads them on another one records that, as always.
        """
        if len(self.layout.blocks) != 1 or self.layout.padded:
            raise ValueError("run() makes a KeyedJaggedTensor of packed lists; this layout is for launch()")
        self._check_weights(raw)
        self._make_room(raw)
        outputs = self._outputs(torch.empty)
        self.launch(self.bind(raw), outputs, max_programs=max_programs)
        num_ids = self._num_ids(raw, outputs)
        while num_ids is None:
            self._grow()
            outputs = self._outputs(torch.empty)
            self.launch(self.bind(raw), outputs, max_programs=max_programs)
            num_ids = self._num_ids(raw, outputs)
        return self._model_batch(raw, outputs, num_ids)

    def _check_weights(self, raw: RawBatch) -> None:
        """Kernels read a weight for each id: raises BatchError if a batch holds fewer or more."""
        for column, weights in self._weighted:
            ids, theirs = raw.columns.get(column), raw.columns.get(weights)
            if ids is not None and theirs is not None and ids.values_N.numel() != theirs.values_N.numel():
                raise BatchError(f"weights {weights} and ids {column} have lists of different lengths in the same row")

    def _num_ids(self, raw: RawBatch, outputs: Outputs) -> int | None:
        """Ids of the batch; None if they did not fit."""
        if self.is_static:
            fits = not self.groups.stages or int(outputs.overflow) == 0
            return self._ids_per_row() * raw.num_rows if fits else None
        totals = torch.cat([outputs.block_totals_P, outputs.overflow.to(torch.int64)]).tolist()
        return None if totals[-1] else int(totals[0])

    def _ids_per_row(self) -> int:
        """Ids of a row, of the features that are lanes."""
        return sum(_is_ids(lane) for lane in self.groups.lanes)

    def _model_batch(self, raw: RawBatch, outputs: Outputs, num_ids: int) -> ModelBatch:
        rows, weights = raw.num_rows, outputs.weights_N
        return ModelBatch(
            dense_BD=outputs.dense_BD[:rows],
            sparse=KeyedJaggedTensor(
                keys=list(self.layout.blocks[0].features),
                values=outputs.ids_N[:num_ids],
                weights=None if weights is None else weights[:num_ids],
                lengths=outputs.lengths_FB[: len(self.graph.sparse) * rows],
                stride=rows,
            ),
            labels_B=outputs.labels_B[:rows],
            global_rows=raw.global_rows,
            event_times_s_B=raw.event_times_s_B,
            counters={"bucketize_nan": outputs.counters[0]},
        )

    # -- planning

    def _make_room(self, raw: RawBatch) -> None:
        """Plans again if the batch has more rows, longer columns or nulls where none were seen."""
        limits = self.limits
        capacities = dict(limits.capacities)
        for name in self.inputs:
            column = raw.columns.get(name)
            if column is not None and column.lengths_B is not None:
                held = column.values_N.numel()
                if held > capacities.get(name, 0):
                    capacities[name] = int(held * ROOM)
        nulls = {name for name in self.inputs if name in raw.columns and raw.columns[name].nulls_N is not None}
        wanted = replace(
            limits,
            batch_size=max(limits.batch_size, raw.num_rows),
            capacities=capacities,
            nullable=limits.nullable | nulls,
        )
        if wanted != limits:
            self._replan(wanted)

    def _grow(self) -> None:
        growth = self.limits.growth * 2
        if growth > MAX_GROWTH:
            raise ValueError(
                "a batch's cartesian pairs outgrow all room; lower `max` of cartesian, or shorten its lists with firstx"
            )
        self._replan(replace(self.limits, growth=growth))

    def _replan(self, limits: Limits) -> None:
        self._plan = self._made(limits)

    def _made(self, limits: Limits) -> _Plan:
        lowered = lower(self.graph, limits.nullable, padded=self.layout.padded)
        groups = group(lowered, tiles=self._tiles)
        columns = {name: 0 for name, value in self.graph.columns.items() if value.is_list} | dict(limits.capacities)
        tables = Tables(
            groups=groups,
            sizes=Sizes(batch_size=limits.batch_size, columns=columns, growth=limits.growth),
            layout=self.layout,
            names=tuple(feature.name for feature in self.graph.sparse),
        ).build()
        lane_ids = sum(_is_ids(lane) for lane in groups.lanes) * limits.batch_size
        first = len(groups.raw_lists)
        list_ids = sum(
            tables.capacities[first + number] for number, s in enumerate(groups.stages) if s.destination.slot is None
        )
        fixed = max((b.base + (b.capacity or 0) for b in self.layout.blocks), default=0)
        ids_capacity = max(lane_ids + list_ids, fixed)
        scratch = Scratch.of(tables, lowered, self.device)
        binder = Binder(tables, scratch, self.graph.columns, self.device)
        on_gpu = self.device.type == "cuda"
        runner = Runner(
            launches=groups.launches,
            tiles=groups.tiles,
            tables=DeviceTables.of(tables, ids_capacity=ids_capacity, device=self.device),
            scratch=scratch,
            num_slots=len(tables.slots),
            capacities=tuple(tables.capacities),
            row_capacity=limits.batch_size,
            num_features=len(tables.features),
            num_blocks=len(self.layout.blocks),
            writes_lengths=self.layout.write_lengths,
            num_multiprocessors=(
                torch.cuda.get_device_properties(self.device).multi_processor_count if on_gpu else None
            ),
        )
        return _Plan(
            limits=limits, lowered=lowered, groups=groups, binder=binder, runner=runner, ids_capacity=ids_capacity
        )


def _is_ids(lane: Lane) -> bool:
    return lane.destination.kind == "ids" and lane.destination.width > 0
