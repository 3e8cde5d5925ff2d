"""Builds captured sizes: buffers, preprocessing, the step over them, and its graphs, again and again while a job runs.

Not here: when a size is built, which one a step takes (`sizes`), and what a capture is (`capture`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import count

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan

from rap_trainer.captured.assemble import Assembly
from rap_trainer.captured.beside import Beside, yielding
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.list_exchange import ListExchange, make_lists
from rap_trainer.captured.lists import Form, list_layout
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import RawBuffer
from rap_trainer.captured.raw_layout import RawLayout
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.sizes import Fitted, Size
from rap_trainer.captured.slots import Slot, jagged
from rap_trainer.captured.step import TrainStep
from rap_trainer.captured.uploads import NUM_PINNED
from rap_trainer.captured.watchdog import Progress
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.world import World

log = logging.getLogger(__name__)

ROOM_BESIDE = 2
"""Free memory of the device over what a size holds, above which another is captured beside it and not in its place."""
BOUNDED = 8
"""Programs of a launch that only compiles: fewer than any batch's tiles."""
DEFAULT_WINDOWS = {False: Window.EMB_BWD, True: Window.OUTPUT_DIST}
"""Where preprocessing hides without a measured plan: alone beside the tables' update (0.4 % above the ideal for plan 0 at 4096, 0.9 to 1.2 at 8192, 1.7 for
plan 2; behind the lookup 1.0, 1.3, 2.0: H200, 2026-11-30); between ranks (True) beside the exchange, which copy engines run without an SM, and with lists, too (plan 4: 0.88 ms
above its ideal beside the update and 0.72 behind the lookup in one run; 0.64 there and 0.61 behind it, beside no exchange, in another: one H200, 2026-12-01)."""


class SizeBuilder:
    """Of one runtime; its captures are made one after the other, in one thread."""

    def __init__(
        self, graph: FeatureGraph, assembly: Assembly, world: World, *, evaluator: Evaluator | None, progress: Progress
    ) -> None:
        self._graph, self._assembly, self._world = graph, assembly, world
        self._evaluator, self._progress = evaluator, progress
        self._numbers = count()
        self.beside = Beside(world.device)
        self.sorts_early = True
        """The tables' backward sorts ids before their gradients arrive."""
        self.graph_bytes = 0
        """What the latest graphs hold."""

    def size(
        self,
        layout: RawLayout,
        form: Form,
        *,
        plan: Plan | None,
        schedule: Schedule | None,
        held: Sequence[RawBuffer] = (),
        warm: bool = False,
    ) -> Size:
        """A new size; collective. `held`: raw buffers of less room whose batches it goes on with.

        `warm`: the same step ran before with other raw buffers: no rank needs another.
        """
        assembly, lists, exchange = self._assembly, None, None
        slots = assembly.slots
        if form is Form.LISTS:
            owned = assembly.ownership
            lists = list_layout(
                self._graph,
                owned.whole,
                batch_size=layout.batch_size,
                capacities=layout.capacities,
                split=owned.split,
                replicated=owned.replicated,
            )
            exchange = make_lists(lists, assembly.exchange, self._world)
            slots = assembly.slots_with(exchange)
        preprocessor = FusedPreprocessor(
            self._graph, assembly.order, layout, slots, self._world.device, lists=lists, form=form
        )
        for buffer, before in zip(preprocessor.raw, held, strict=False):
            buffer.take_over(before)
        if plan is not None:
            with suppress(
                PlanRefused
            ):  # lists have other launches than single ids: the default schedule until a plan comes
                preprocessor = preprocessor.planned(plan)
        step = self.step(schedule, preprocessor, exchange)
        return Size(
            number=next(self._numbers),
            layout=layout,
            lists=exchange,
            slots=slots,
            preprocessor=preprocessor,
            pinned=[RawBuffer(layout, torch.device("cpu"), pinned=True) for _ in range(NUM_PINNED)],
            step=step,
            graphs=self.graphs(step, slots, warm=warm),
        )

    def lacks_memory(self, size: Size) -> bool:
        """Whether a size somewhat larger than this one might not fit beside all there are."""
        free, _ = torch.cuda.mem_get_info(self._world.device)
        return free < ROOM_BESIDE * (self.graph_bytes + len(size.slots) * size.layout.num_bytes)

    def step(self, schedule: Schedule | None, preprocessor: FusedPreprocessor, lists: ListExchange | None) -> TrainStep:
        """The recipe. Without a schedule, or with one for other launches, the default window."""
        kernels = preprocessor.num_kernels
        if schedule is None or len(schedule.placements) != kernels:
            schedule = Schedule.uniform(kernels, DEFAULT_WINDOWS[self._world.size > 1 or lists is not None])
        return self._assembly.step(preprocessor, schedule, lists=lists, score=self._score(), progress=self._progress)

    def graphs(self, step: TrainStep, slots: tuple[Slot, Slot], *, warm: bool) -> CapturedSteps:
        """Captures a step between two of the graphs in force."""
        before = torch.cuda.memory_reserved(self._world.device)
        with nullcontext() if self._evaluator is None else self._evaluator.unseen():
            graphs = self.beside.run(lambda: self.captured(step, slots, warm=warm))
        self.graph_bytes = max(0, torch.cuda.memory_reserved(self._world.device) - before)
        self._progress.restart()
        return graphs

    def graphs_beside(self, step: TrainStep, slots: tuple[Slot, Slot]) -> CapturedSteps:
        """Captures a step in the capturing thread, while the graphs in force train."""
        return CapturedSteps(step, slots, warm=True, sort_early=self.sorts_early, beside=True)

    def fitted(self, size: Size, step: TrainStep, num_ids: int) -> Fitted | None:
        """Graphs of a size's step for batches of so many ids, in the capturing thread; None if memory is short."""
        if torch.cuda.mem_get_info(self._world.device)[0] < self.graph_bytes:
            return None
        first, second = (replace(slot, inputs=jagged(slot).fitted(num_ids)) for slot in size.slots)
        with yielding():
            graphs = self.graphs_beside(step, (first, second))
        return Fitted(num_ids=num_ids, slots=(first, second), step=step, graphs=graphs)

    def captured(self, step: TrainStep, slots: tuple[Slot, Slot], *, warm: bool) -> CapturedSteps:
        """The graphs, in the thread that captures."""
        # A plan's bounded grids have kernels of their own, and a capture beside training must not compile.
        for slot in slots:
            for kernel in range(step.preprocessor.num_kernels):
                step.preprocessor.launch(kernel, slot, BOUNDED)
        if self.sorts_early:
            try:
                return CapturedSteps(step, slots, warm=warm)
            except RuntimeError as error:  # another FBGEMM or driver than the gate knows
                log.warning("ids are sorted after their gradients arrive, which costs about 0.1 ms a step: %s", error)
                self.sorts_early = False
        return CapturedSteps(step, slots, warm=warm, sort_early=False)

    def _score(self) -> Callable[[Slot], None] | None:
        evaluator = self._evaluator
        if evaluator is None:
            return None

        def score(slot: Slot) -> None:
            evaluator.accumulate(slot.outcome.logits_B, slot.targets.labels_B)

        return score
