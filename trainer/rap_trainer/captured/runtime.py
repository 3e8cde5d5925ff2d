"""The captured runtime: `prepare` copies a batch to the device, `train` replays the graph that trains the one before.

The same interface as the eager runtime. While the graph of step i runs, the GPU also preprocesses batch i + 1 (a branch
of that graph) and receives batch i + 2 (a copy on its own stream). A batch whose preprocessing could not ride
on the step before it, because none was ready then, is preprocessed on its own first. The host only packs and enqueues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.captured.agreement import Agreement
from rap_trainer.captured.assemble import Assembly, CannotCapture, assemble
from rap_trainer.captured.beside import Graphs
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.fitting import Fitting
from rap_trainer.captured.lists import Form, form_of, roomy
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import Overflow, RawBuffer
from rap_trainer.captured.raw_layout import ROOM, RawLayout, raw_layout
from rap_trainer.captured.schedule import Schedule, schedule_of
from rap_trainer.captured.size_builder import SizeBuilder
from rap_trainer.captured.sizes import Choice, Int64s, Size, elements_of, kept, smallest
from rap_trainer.captured.slots import Slot
from rap_trainer.captured.state import DEFAULT_TUNING, CapturedState, Tuning
from rap_trainer.captured.step_timer import StepTimer
from rap_trainer.captured.uploads import Uploads
from rap_trainer.captured.watchdog import Progress, Watchdog
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.plan.fits import PlanRefused, owner_refusal, refusal
from rap_trainer.step.stages import StepState
from rap_trainer.world import World

log = logging.getLogger(__name__)


GROWTH = 1.25
"""Room of a list that outgrew a size over the room it had, at least: sizes are few."""


class CapturedRuntime:
    """Trains batches of up to `batch_size` rows a rank. Not thread-safe; every rank makes the same calls."""

    def __init__(
        self,
        model: ShardedModel,
        graph: FeatureGraph,
        world: World,
        *,
        batch_size: int,
        evaluator: Evaluator | None = None,
        precision: str = "tf32",
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        """Captures at once. Collective. Raises CannotCapture with the reasons if the job has no captured form."""
        self._form = form_of(graph)
        self._graph, self._world, self._evaluator = graph, world, evaluator
        self._model = model
        self.assembly: Assembly = assemble(
            model,
            world,
            batch_size=batch_size,
            exchange=tuning.exchange,
            precision=precision,
            num_dense=graph.dense_width,
            ids_proven=True,
            lists=self._form is not Form.SINGLE,
            direct=tuning.direct,
        )
        self._progress = Progress(world.device, self.assembly.lanes.progress)
        idle = torch.cuda.current_stream(world.device).query
        self._watchdog = Watchdog(world.rank, self._progress, limit_s=tuning.hang_s, idle=idle)
        self.timer = StepTimer(world.device)
        self._uploads = Uploads(world.device)
        self._schedule = tuning.schedule
        self._prepared = 0
        self._upcoming: CapturedState | None = None
        self._plan: Plan | None = None
        self.builder = SizeBuilder(graph, self.assembly, world, evaluator=evaluator, progress=self._progress)
        self.builder.sorts_early, self.beside = tuning.sort_early, self.builder.beside
        self._fitting = Fitting(self.builder, waits=self.assembly.exchange.uses_nccl)
        self.size: Size
        """What the latest step has taken."""
        self._sizes: list[Size] = []
        """All there are, ascending; several only where rows hold several ids, for room costs no time elsewhere."""
        self._choice, self._steps = Choice(), 0
        self._losses = tuple((slot.outcome.loss_share[0], slot.outcome.loss_sum[0]) for slot in self.assembly.slots)
        self._capture(raw_layout(graph, batch_size=batch_size, capacities={}))

    # -- what the loop calls

    def prepare(self, raw: RawBatch) -> CapturedState:
        """Copies a batch to the device, on a stream of its own.

        Captures again if a list column outgrew its room; where rows may hold several ids that is left to `train`, for all ranks must
        agree, and collective: each rank prepares the same step.
        """
        state = CapturedState(raw=raw, slot=self._prepared % 2)
        if self._form is Form.SINGLE:
            try:
                self._upload(state, self.size)
            except Overflow as overflow:
                self._grow_alone(overflow.needed)
                self._upload(state, self.size)
        else:
            needed = self._needed(raw)
            state.agreement = Agreement(needed, self._world)
            if needed < len(self._sizes):
                self._upload(state, self._sizes[max(needed, self._sizes.index(self.size))])
        self._prepared += 1
        self._upcoming = state
        return state

    def _needed(self, raw: RawBatch) -> int:
        """Index of the smallest size that the batch fits into."""
        if self._form is Form.ASSUMED:
            return 0 if self.size.pinned[0].holds_one_each(raw) else len(self._sizes)
        return smallest(self._sizes, elements_of(raw, self.size.layout))

    def _upload(self, state: CapturedState, size: Size) -> None:
        self._uploads.begin(state.raw, state.slot, size.preprocessor, size.pinned)
        state.size, state.preprocessed = size, False

    @property
    def waited_s(self) -> float:
        """How long the host has waited for room on the device, in all: back pressure, not work."""
        return self._uploads.waited_s + self._fitting.waited_s

    def train(self, state: StepState) -> CapturedState:
        """Replays the step of a prepared batch. Collective. Loss and logits are read lazily, before the step after next."""
        assert isinstance(state, CapturedState)
        upcoming = self._upcoming
        following = None if upcoming is state else upcoming
        if state.agreement is not None:
            self._choose(state.agreement.reached(), [state] if following is None else [state, following])
        self._steps += 1
        self.size.last_step = self._steps
        slot = self.size.slots[state.slot]
        self._uploads.settle()
        filled_now = not state.preprocessed
        if filled_now:
            self.size.step.prepare(slot)
        if following is not None:
            following.preprocessed = following.size is self.size
        if state.raw.num_rows < slot.dense.shape[0]:  # no row of the batch: a zero gradient times Inf would be NaN
            slot.dense[state.raw.num_rows :].zero_()
        graphs = self._fitting.graphs(self.size, slot, filled_now=filled_now)
        self.timer.begin()
        self._replay(graphs, state, slot)
        self.timer.end()
        if upcoming is state:
            self._upcoming = None
        state.batch = self._model_batch(state.raw, slot)
        state.loss, state.loss_sum = self._losses[state.slot]
        return state

    # -- plans and captures

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None: the default schedule."""
        return self._plan

    def prepare_plan(self, plan: Plan) -> None:
        """Captures a plan beside the steps of the one in force, from any thread. Raises PlanRefused; the old plan then stays."""
        reason = refusal(plan, self._graph, num_ranks=self._world.size) or owner_refusal(plan, self._graph, None)
        if reason is not None:
            raise PlanRefused(reason)
        with self.beside.lock:
            size = self.size
            preprocessor = size.preprocessor.planned(plan)
            self.beside.prepare(plan, schedule_of(plan), lambda: self._captured_beside(plan, preprocessor, size))

    def switch_plan(self) -> None:
        """Runs the plan that was prepared last, from the next step on. Talks to no other rank.

        Captures it now if it could not be captured before, or lists have outgrown the buffers it was captured with.
        """
        with self.beside.lock:
            size, prepared = self._only_size(), self.beside.take()
            graphs = prepared.graphs
            if graphs is not None:
                is_current = graphs.size_number == size.number
                old = (size.graphs, size.fitted) if is_current else (graphs.steps, graphs.fitted)
                if is_current:
                    size.graphs, size.fitted, size.step = graphs.steps, graphs.fitted, graphs.step
                    self._schedule = prepared.schedule
                self.beside.close_behind(*old)
            self._plan, size.preprocessor = prepared.plan, size.preprocessor.planned(prepared.plan)
        self.switch(prepared.schedule)

    def _captured_beside(self, plan: Plan, preprocessor: FusedPreprocessor, size: Size) -> Graphs | None:
        """None: they are those in force, or cannot be made now: no memory, or NCCL, which two threads must not call at once."""
        schedule, (free, _) = schedule_of(plan), torch.cuda.mem_get_info(self._world.device)
        if schedule == self.schedule or free < self.builder.graph_bytes or self.assembly.exchange.uses_nccl:
            return None
        step = self.builder.step(schedule, preprocessor, size.lists)
        steps, held = self.builder.graphs_beside(step, size.slots), size.fitted
        fitted = None if held is None else self.builder.fitted(size, step, held.num_ids)
        return Graphs(step=step, steps=steps, size_number=size.number, fitted=fitted)

    def _only_size(self) -> Size:
        """The size in force; the others were captured with another plan and are made again when they are needed."""
        self._uploads.settle()
        for size in self._sizes:
            if size is not self.size:
                self.beside.close_behind(size.graphs, size.fitted)
        self._sizes = [self.size]
        return self.size

    @property
    def schedule(self) -> Schedule:
        """Where preprocessing runs."""
        return self.size.step.schedule

    @property
    def assembled(self) -> Assembly:
        """The parts with the slots and lists the step has now, of which all else that is captured is built; waits for the device."""
        self.settle()
        return replace(self.assembly, slots=self.size.smallest_slots, lists=self.size.lists)

    @property
    def preprocessor(self) -> FusedPreprocessor:
        """The launches of the plan in force."""
        return self.size.preprocessor

    def settle(self) -> None:
        """Waits until what was prepared is on the device and all steps are done: buffers and slots hold whole batches."""
        self._uploads.settle()
        with self.beside.alone():
            torch.cuda.synchronize(self._world.device)

    @property
    def sorts_early(self) -> bool:
        """The tables' backward sorts ids before their gradients arrive."""
        return self.builder.sorts_early

    @property
    def num_kernels(self) -> int:
        """Fused launches a schedule places."""
        return self.size.preprocessor.num_kernels

    def switch(self, schedule: Schedule) -> None:
        """Captures again with another schedule, between two steps; no state changes, no memory is kept.

        Raises ValueError if the schedule is not of this program's launches; the old one then stays.
        """
        if (placed := len(schedule.placements)) != self.num_kernels:
            raise ValueError(f"the schedule places {placed} launches, this job has {self.num_kernels}")
        if schedule == self.schedule:
            return
        self._schedule = schedule
        with self.beside.alone():
            size = self._only_size()
            fitted = None if size.fitted is None else size.fitted.num_ids
            size.close()
            size.step = self.builder.step(schedule, size.preprocessor, size.lists)
            size.graphs = self.builder.graphs(size.step, size.slots, warm=True)
            self._fitting.again(size, fitted)

    def fit(self) -> None:
        """Captures steps for as many ids as the batches prepared last hold, which else happens in time. Nothing for single ids."""
        self.settle()
        with self.beside.alone():
            self._fitting.now(self.size)

    def synchronise_state(self) -> None:
        """Writes what a checkpoint reads from the host: the dense optimizer's step count."""
        self.assembly.optimizer.publish_step(self.assembly.torch_optimizer)

    def reload(self) -> None:
        """Takes over weights and state that a checkpoint has loaded into the model and its optimizer."""
        if not self.assembly.dense.flat.is_adopted():
            raise CannotCapture(("the loaded checkpoint replaced the parameters' memory",))
        self.assembly.optimizer.load_from(self.assembly.torch_optimizer)
        self._upcoming = None

    def close(self) -> None:
        """Gives graphs and their memory back."""
        self._watchdog.close()
        self._uploads.close()
        with self.beside.alone():
            self._fitting.install()
            for size in self._sizes:
                size.close()
        self.beside.close()

    def _capture(self, layout: RawLayout, *, warm: bool = False, held: Sequence[RawBuffer] = ()) -> None:
        """A new size, behind all others, and goes on in it."""
        with self.beside.lock:
            self.size = self.builder.size(
                layout, self._form, plan=self._plan, schedule=self._schedule, held=held, warm=warm
            )
            self._sizes.append(self.size)

    # -- sizes

    def _choose(self, needed: int, states: Sequence[CapturedState]) -> None:
        """Goes on in a size that the first state needs on some rank, with what of the others fits into it. Collective."""
        if needed >= len(self._sizes):
            self._adapt(states)
            return
        self.size = size = self._sizes[self._choice.of(needed, self._sizes.index(self.size))]
        for state in states:
            if state.size is not size and (state is states[0] or size.holds(elements_of(state.raw, size.layout))):
                self._upload(state, size)

    def _adapt(self, states: Sequence[CapturedState]) -> None:
        """Captures a size that holds these batches on all ranks, as lists. Collective."""
        layout = self.size.layout
        elements = np.stack([elements_of(state.raw, layout) for state in states]).max(0)
        asked = torch.tensor([*elements.tolist(), self.builder.lacks_memory(self.size)])
        if self._world.size > 1:
            dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._world.control_group)
        largest, lacks_memory = asked[:-1].numpy(), bool(asked[-1])
        if self._form is Form.ASSUMED:
            log.info("rows have lists of several ids: from here on they travel as lists")
            self._form = Form.LISTS
            self._grow(largest, [])
        elif (index := smallest(self._sizes, largest)) < len(self._sizes):  # a plan was switched meanwhile
            self.size = self._sizes[index]
        else:
            self._grow(largest, [] if lacks_memory else kept(self._sizes))
        for state in states:
            self._upload(state, self.size)
            if state.agreement is not None:
                state.agreement.settle()
                state.agreement = None

    def _grow(self, elements: Int64s, others: list[Size]) -> None:
        """A size with room for so many elements of each list column, beside others. Collective."""
        largest = self._sizes[-1]
        layout, least = largest.layout, GROWTH if largest.last_step else 1.0
        room = {
            name: held if n <= held else max(roomy(n, layout.batch_size), int(least * held))
            for (name, held), n in zip(layout.capacities.items(), elements.tolist(), strict=True)
        }
        log.info("captures lists of up to %d elements beside %d other sizes", sum(room.values()), len(others))
        self._replace(raw_layout(self._graph, batch_size=layout.batch_size, capacities=room), others)

    def _grow_alone(self, needed: Mapping[str, int]) -> None:
        """More room for raw lists where no row has several ids: no rank needs another, each grows when its own data asks for it."""
        layout = self.size.layout
        room = {name: int(ROOM * elements) for name, elements in needed.items()}
        capacities = {name: max(held, room.get(name, 0)) for name, held in layout.capacities.items()}
        log.info("captures again for lists of up to %s elements", needed)
        grown = raw_layout(self._graph, batch_size=layout.batch_size, capacities=capacities)
        self._replace(grown, [], warm=True, held=self.size.preprocessor.raw)

    def _replace(
        self, layout: RawLayout, others: list[Size], *, warm: bool = False, held: Sequence[RawBuffer] = ()
    ) -> None:
        """Captures a size in place of all but these."""
        self._uploads.settle()
        with self.beside.alone():
            torch.cuda.synchronize(self._world.device)
            for size in self._sizes:
                if size not in others:
                    size.close()
            self._sizes = others
            self._capture(layout, warm=warm, held=held)

    # -- a step

    def _replay(self, graphs: CapturedSteps, state: CapturedState, slot: Slot) -> None:
        evaluator, raw = self._evaluator, state.raw
        rows = raw.num_rows
        if evaluator is None:
            graphs.replay(state.slot)
            return
        if rows == self.assembly.blocks.batch_size:
            graphs.replay(state.slot)
        else:
            with evaluator.unseen():
                graphs.replay(state.slot)
            evaluator.accumulate(slot.outcome.logits_B[:rows], slot.targets.labels_B[:rows])
        evaluator.advance(raw.global_rows)

    def _model_batch(self, raw: RawBatch, slot: Slot) -> ModelBatch:
        rows = raw.num_rows
        dense_BD, labels_B = slot.dense[:, : self._graph.dense_width], slot.targets.labels_B
        if rows < self.assembly.blocks.batch_size:
            dense_BD, labels_B = dense_BD[:rows], labels_B[:rows]
        return ModelBatch(
            dense_BD=dense_BD,
            sparse=slot.inputs.kjt,
            labels_B=labels_B,
            global_rows=raw.global_rows,
            event_times_s_B=raw.event_times_s_B,
        )
