"""The fused program as the captured step's preprocessor: bound once to two raw buffers and the two slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan

from rap_trainer.captured.lists import Form, ListLayout, list_limits, single_layout
from rap_trainer.captured.raw import RawBuffer
from rap_trainer.captured.raw_layout import RawLayout
from rap_trainer.captured.slots import Slot
from rap_trainer.fusion.buffers import Outputs
from rap_trainer.fusion.program import FusedProgram
from rap_trainer.plan.fits import PlanRefused


class FusedPreprocessor:
    """Raw buffer k fills slot k. Without `lists`, raises ValueError for a graph whose rows may hold several ids."""

    def __init__(
        self,
        graph: FeatureGraph,
        order: Sequence[str],
        layout: RawLayout,
        slots: tuple[Slot, Slot],
        device: torch.device,
        *,
        lists: ListLayout | None = None,
        form: Form = Form.SINGLE,
    ) -> None:
        self.raw = tuple(RawBuffer(layout, device) for _ in slots)
        self._on_gpu = device.type == "cuda"
        self.arrived = tuple(_event() for _ in slots) if self._on_gpu else ()
        """A batch is in its raw buffer: what the first launch waits for. Recorded by whoever copies it there."""
        self.consumed = tuple(_event() for _ in slots) if self._on_gpu else ()
        """A raw buffer has been read and may be overwritten: recorded behind the last launch."""
        batches = [buffer.batch() for buffer in self.raw]
        limits = list_limits(graph, batch_size=layout.batch_size, capacities=layout.capacities)
        outputs = single_layout(graph, order, form) if lists is None else lists.output_layout()
        self.program = self._whole = FusedProgram(graph, device, limits=limits, layout=outputs)
        self._bindings = [self.program.bind(batch) for batch in batches]
        self._outputs = [self._outputs_of(slot) for slot in slots]

    def _outputs_of(self, slot: Slot) -> Outputs:
        if slot.lists is None:
            return self.program.new_outputs(
                dense_BD=slot.dense,
                ids_N=slot.ids_FB.view(-1),
                labels_B=slot.targets.labels_B,
                present_BF=slot.present_BS,
            )
        return self.program.new_outputs(
            dense_BD=slot.dense,
            ids_N=slot.lists.ids_N,
            lengths_FB=slot.lists.lengths,
            weights_N=slot.lists.weights_N,
            labels_B=slot.targets.labels_B,
        )

    @property
    def num_kernels(self) -> int:
        """Fused launches of a batch."""
        return self.program.num_kernels

    def planned(self, plan: Plan) -> FusedPreprocessor:
        """The same preprocessing in the plan's kernels, over the same buffers. Raises PlanRefused."""
        twin = copy.copy(self)
        try:
            twin.program = self._whole.in_parts([(kernel.stage, kernel.features) for kernel in plan.kernels])
        except ValueError as reason:
            raise PlanRefused(f"{reason}; plan again with `rap plan`") from None
        return twin

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        """One launch; the last one also hands over how many rows count and what a row weighs.

        Both events are nodes of a graph in a capture, so that only this branch of a step waits for a batch to arrive.
        """
        index = slot.index
        if kernel == 0 and self._on_gpu:
            self.arrived[index].wait()
        self.program.launch_kernel(kernel, self._bindings[index], self._outputs[index], max_programs=programs)
        if kernel == self.num_kernels - 1:
            slot.header.copy_(self.raw[index].header)
            if self._on_gpu:
                self.consumed[index].record()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record()  # torch makes it then, and a capture must not
    return event
