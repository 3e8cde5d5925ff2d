"""The fused program as the captured step's preprocessor: bound once to two raw buffers and the two slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rap_contract.graph import FeatureGraph

from rap_trainer.captured.raw import RawBuffer
from rap_trainer.captured.raw_layout import RawLayout
from rap_trainer.captured.slots import Slot
from rap_trainer.fusion.layout import OutputLayout
from rap_trainer.fusion.program import FusedProgram, Limits


class FusedPreprocessor:
    """Raw buffer k fills slot k. Raises ValueError for a graph without a padded layout (several ids a row)."""

    def __init__(
        self,
        graph: FeatureGraph,
        order: Sequence[str],
        layout: RawLayout,
        slots: tuple[Slot, Slot],
        device: torch.device,
    ) -> None:
        self.raw = tuple(RawBuffer(layout, device) for _ in slots)
        batches = [buffer.batch() for buffer in self.raw]
        nullable = frozenset(name for name, column in batches[0].columns.items() if column.nulls_N is not None)
        self.program = FusedProgram(
            graph,
            device,
            limits=Limits(batch_size=layout.batch_size, capacities=layout.capacities, nullable=nullable),
            layout=OutputLayout.one_id_each(order),
        )
        self._bindings = [self.program.bind(batch) for batch in batches]
        self._outputs = [
            self.program.new_outputs(
                dense_BD=slot.dense,
                ids_N=slot.ids_FB.view(-1),
                labels_B=slot.targets.labels_B,
                present_BF=slot.present_BS,
            )
            for slot in slots
        ]

    @property
    def num_kernels(self) -> int:
        """Fused launches of a batch."""
        return self.program.num_kernels

    def launch(self, kernel: int, slot: Slot, programs: int | None) -> None:
        """One launch; the last one also hands over how many rows count and what a row weighs."""
        index = slot.index
        self.program.launch_kernel(kernel, self._bindings[index], self._outputs[index], max_programs=programs)
        if kernel == self.num_kernels - 1:
            slot.header.copy_(self.raw[index].header)
