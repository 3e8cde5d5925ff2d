"""The captured runtime: `prepare` copies a batch to the device, `train` replays the graph that trains the one before.

The same interface as the eager runtime. While the graph of step i runs, the GPU also preprocesses batch i + 1 (a branch
of that graph) and receives batch i + 2 (a copy on its own stream). A batch whose preprocessing could not ride
on the step before it, because none was ready then, is preprocessed on its own first. The host only packs and enqueues.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.captured.agreement import Agreement
from rap_trainer.captured.assemble import Assembly, CannotCapture, assemble
from rap_trainer.captured.beside import Beside, Graphs
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.list_exchange import ListExchange, make_lists
from rap_trainer.captured.lists import Form, form_of, list_layout, roomy
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import Overflow, RawBuffer
from rap_trainer.captured.raw_layout import ROOM, RawLayout, raw_layout
from rap_trainer.captured.schedule import Schedule, Window, schedule_of
from rap_trainer.captured.slots import Slot
from rap_trainer.captured.state import DEFAULT_TUNING, CapturedState, Tuning
from rap_trainer.captured.step import TrainStep
from rap_trainer.captured.step_timer import StepTimer
from rap_trainer.captured.uploads import NUM_PINNED, Uploads
from rap_trainer.captured.watchdog import Progress, Watchdog
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.plan.fits import PlanRefused, owner_refusal, refusal
from rap_trainer.step.stages import StepState
from rap_trainer.world import World

log = logging.getLogger(__name__)

BOUNDED = 8
"""Programs of a launch that only compiles: fewer than any batch's tiles."""
DEFAULT_WINDOWS = {False: Window.EMB_BWD, True: Window.OUTPUT_DIST}
"""Where preprocessing hides without a measured plan, alone and between ranks: beside the tables' update (0.4 % above the ideal for plan 0 at 4096,
0.9 to 1.2 at 8192, 1.7 for plan 2; behind the lookup 1.0, 1.3, 2.0: H200, 2026-11-30), or beside the exchange, which copy engines run without an SM."""


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
        )
        self._progress = Progress(world.device, self.assembly.lanes.progress)
        idle = torch.cuda.current_stream(world.device).query
        self._watchdog = Watchdog(world.rank, self._progress, limit_s=tuning.hang_s, idle=idle)
        self.timer = StepTimer(world.device)
        self._uploads = Uploads(world.device)
        self._schedule, self.sorts_early = tuning.schedule, tuning.sort_early
        self._prepared = 0
        self._upcoming: CapturedState | None = None
        self._plan: Plan | None = None
        self.beside = Beside(world.device)
        self._graphs: CapturedSteps
        self._preprocessor: FusedPreprocessor
        self._generation = self._graph_bytes = 0
        self._losses = tuple((slot.outcome.loss_share[0], slot.outcome.loss_sum[0]) for slot in self.assembly.slots)
        self._capture(raw_layout(graph, batch_size=batch_size, capacities={}))

    # -- what the loop calls

    def prepare(self, raw: RawBatch) -> CapturedState:
        """Copies a batch to the device, on a stream of its own.

        Captures again if a list column outgrew its room; where rows may hold several ids that is left to `train`, for all ranks must
        agree, and collective: each rank prepares the same step.
        """
        slot = self._prepared % 2
        state = CapturedState(raw=raw, slot=slot)
        if self._form is Form.SINGLE:
            try:
                self._upload(raw, slot)
            except Overflow as overflow:
                self._grow(overflow.needed)
                self._upload(raw, slot)
        else:
            buffer = self._pinned[0]
            fits = buffer.holds_one_each(raw) if self._form is Form.ASSUMED else not buffer.shortage(raw)
            state.agreement = Agreement(fits, self._world)
            if fits:
                self._upload(raw, slot)
        self._prepared += 1
        self._upcoming = state
        return state

    def _upload(self, raw: RawBatch, slot: int) -> None:
        self._uploads.begin(raw, slot, self._preprocessor, self._pinned)

    @property
    def waited_s(self) -> float:
        """How long the host has waited for room on the device, in all: back pressure, not work."""
        return self._uploads.waited_s

    def train(self, state: StepState) -> CapturedState:
        """Replays the step of a prepared batch. Collective. Loss and logits are read lazily, before the step after next."""
        assert isinstance(state, CapturedState)
        upcoming = self._upcoming
        if state.agreement is not None and not state.agreement.reached():
            self._adapt([state] if upcoming is None or upcoming is state else [state, upcoming])
        slot = self._slots[state.slot]
        self._uploads.settle()
        if not state.preprocessed:
            self._step.prepare(slot)
        if upcoming is not None and upcoming is not state:
            upcoming.preprocessed = True
        if state.raw.num_rows < slot.dense.shape[0]:  # no row of the batch: a zero gradient times Inf would be NaN
            slot.dense[state.raw.num_rows :].zero_()
        self.timer.begin()
        self._replay(state, slot)
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
            preprocessor = self._preprocessor.planned(plan)
            self.beside.prepare(plan, schedule_of(plan), lambda: self._captured_beside(plan, preprocessor))

    def switch_plan(self) -> None:
        """Runs the plan that was prepared last, from the next step on. Talks to no other rank.

        Captures it now if it could not be captured before, or lists have outgrown the buffers it was captured with.
        """
        with self.beside.lock:
            prepared = self.beside.take()
            graphs = prepared.graphs
            if graphs is not None:
                is_current = graphs.generation == self._generation
                self.beside.close_behind(self._graphs if is_current else graphs.steps)
                if is_current:
                    self._graphs, self._step, self._schedule = graphs.steps, graphs.step, prepared.schedule
            self._plan, self._preprocessor = prepared.plan, self._preprocessor.planned(prepared.plan)
        self.switch(prepared.schedule)

    def _captured_beside(self, plan: Plan, preprocessor: FusedPreprocessor) -> Graphs | None:
        """None: they are those in force, or cannot be made now: no memory, or NCCL, which two threads must not call at once."""
        schedule, (free, _) = schedule_of(plan), torch.cuda.mem_get_info(self._world.device)
        if schedule == self.schedule or free < self._graph_bytes or self.assembly.exchange.uses_nccl:
            return None
        step = self._step_of(schedule, preprocessor)
        steps = CapturedSteps(step, self._slots, warm=True, sort_early=self.sorts_early, beside=True)
        return Graphs(step=step, steps=steps, generation=self._generation)

    @property
    def schedule(self) -> Schedule:
        """Where preprocessing runs."""
        return self._step.schedule

    @property
    def assembled(self) -> Assembly:
        """The parts with the slots and lists the step has now: what else is to be captured is built of them."""
        return replace(self.assembly, slots=self._slots, lists=self._lists)

    @property
    def preprocessor(self) -> FusedPreprocessor:
        """The launches of the plan in force."""
        return self._preprocessor

    @property
    def num_kernels(self) -> int:
        """Fused launches a schedule places."""
        return self._preprocessor.num_kernels

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
            self._graphs.close()
            self._record(warm=True)

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
            self._graphs.close()
        self.beside.close()

    def _capture(self, layout: RawLayout, *, warm: bool = False, held: Sequence[RawBuffer] = ()) -> None:
        with self.beside.lock:
            self._replace_buffers(layout, held)
            self._record(warm=warm)

    def _replace_buffers(self, layout: RawLayout, held: Sequence[RawBuffer]) -> None:
        self._generation += 1
        device, slots, lists = self._world.device, self.assembly.slots, None
        self._lists: ListExchange | None = None
        if self._form is Form.LISTS:
            lists = list_layout(
                self._graph,
                self.assembly.ownership.whole,
                batch_size=layout.batch_size,
                capacities=layout.capacities,
                split=self.assembly.ownership.split,
                replicated=self.assembly.ownership.replicated,
            )
            self._lists = make_lists(lists, self.assembly.exchange, self._world)
            slots = self.assembly.slots_with(self._lists)
        self._slots = slots
        self._preprocessor = FusedPreprocessor(
            self._graph, self.assembly.order, layout, slots, device, lists=lists, form=self._form
        )
        for buffer, before in zip(self._preprocessor.raw, held, strict=False):
            buffer.take_over(before)
        if self._plan is not None:
            with suppress(
                PlanRefused
            ):  # lists have other launches than single ids: the default schedule until a plan comes
                self._preprocessor = self._preprocessor.planned(self._plan)
        self._pinned = [RawBuffer(layout, torch.device("cpu"), pinned=True) for _ in range(NUM_PINNED)]

    def _record(self, *, warm: bool) -> None:
        kernels = self._preprocessor.num_kernels
        schedule = self._schedule
        if schedule is None or len(schedule.placements) != kernels:
            schedule = Schedule.uniform(kernels, DEFAULT_WINDOWS[self._world.size > 1])
        self._step = self._step_of(schedule, self._preprocessor)
        before = torch.cuda.memory_reserved(self._world.device)
        with nullcontext() if self._evaluator is None else self._evaluator.unseen():
            self._graphs = self.beside.run(lambda: self._captured_steps(self._step, warm=warm))
        self._graph_bytes = max(0, torch.cuda.memory_reserved(self._world.device) - before)
        self._progress.restart()

    def _step_of(self, schedule: Schedule, preprocessor: FusedPreprocessor) -> TrainStep:
        return TrainStep(
            self.assembly.lookup,
            self.assembly.dense,
            self.assembly.optimizer,
            self.assembly.exchange,
            lanes=self.assembly.lanes,
            preprocessor=preprocessor,
            schedule=schedule,
            score=self._score if self._evaluator is not None else None,
            progress=self._progress,
            lists=self._lists,
        )

    def _captured_steps(self, step: TrainStep, *, warm: bool) -> CapturedSteps:
        slots = self._slots
        # A plan's bounded grids have kernels of their own, and a capture beside training must not compile.
        for slot in slots:
            for kernel in range(self._preprocessor.num_kernels):
                self._preprocessor.launch(kernel, slot, BOUNDED)
        if self.sorts_early:
            try:
                return CapturedSteps(step, slots, warm=warm)
            except RuntimeError as error:  # another FBGEMM or driver than the gate knows
                log.warning("ids are sorted after their gradients arrive, which costs about 0.1 ms a step: %s", error)
                self.sorts_early = False
        return CapturedSteps(step, slots, warm=warm, sort_early=False)

    def _adapt(self, states: Sequence[CapturedState]) -> None:
        """Captures again, on all ranks, so that these batches fit: as lists, with more room. Collective."""
        capacities = self._pinned[0].layout.capacities
        sizes = torch.zeros(len(states), len(capacities), dtype=torch.int64)
        for at, state in enumerate(states):
            columns = state.raw.columns
            held = [columns[name].values_N.numel() if name in columns else 0 for name in capacities]
            sizes[at] = torch.tensor(held, dtype=torch.int64)
        largest = sizes.amax(0)
        if self._world.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._world.control_group)
        if self._form is Form.ASSUMED:
            log.info("rows have lists of several ids: from here on they travel as lists")
            self._form = Form.LISTS
        self._grow({name: n for name, n in zip(capacities, largest.tolist(), strict=True) if n > capacities[name]})
        for state in states:
            self._upload(state.raw, state.slot)
            state.preprocessed = False
            if state.agreement is not None:
                state.agreement.settle()
                state.agreement = None

    def _grow(self, needed: Mapping[str, int]) -> None:
        layout = self._pinned[0].layout
        room = {
            name: int(ROOM * elements) if self._form is Form.SINGLE else roomy(elements, layout.batch_size)
            for name, elements in needed.items()
        }
        capacities = {name: max(held, room.get(name, 0)) for name, held in layout.capacities.items()}
        log.info("captures again for lists of up to %s elements", needed)
        grown = raw_layout(self._graph, batch_size=layout.batch_size, capacities=capacities)
        self._uploads.settle()
        with self.beside.alone():
            torch.cuda.synchronize(self._world.device)
            self._graphs.close()
            if self._form is Form.SINGLE:  # talks to no other rank: each grows when its own data asks for it
                self._capture(grown, warm=True, held=self._preprocessor.raw)
            else:
                self._capture(grown)

    # -- a step

    def _replay(self, state: CapturedState, slot: Slot) -> None:
        evaluator, raw = self._evaluator, state.raw
        rows = raw.num_rows
        if evaluator is None:
            self._graphs.replay(state.slot)
            return
        if rows == self.assembly.blocks.batch_size:
            self._graphs.replay(state.slot)
        else:
            with evaluator.unseen():
                self._graphs.replay(state.slot)
            evaluator.accumulate(slot.outcome.logits_B[:rows], slot.targets.labels_B[:rows])
        evaluator.advance(raw.global_rows)

    def _score(self, slot: Slot) -> None:
        assert self._evaluator is not None
        self._evaluator.accumulate(slot.outcome.logits_B, slot.targets.labels_B)

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
