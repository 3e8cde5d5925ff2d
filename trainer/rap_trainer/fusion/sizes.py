"""How much room lists need: from the columns' capacities through each change of structure. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rap_trainer.fusion.slot import Slot
from rap_trainer.fusion.stages import Operand, Stage

CARTESIAN_ROOM = 8  # elements provided for pairs, per element of both lists, unless `max` allows fewer
MAX_ELEMENTS = 2**31 - 1  # offsets within a list are int32


@dataclass
class Sizes:
    """Elements a batch may hold: of raw columns as given, of results as derived."""

    batch_size: int
    columns: Mapping[str, int]
    """Elements of each raw list column."""
    growth: int = 1
    """Factor on bounds that are guesses; raised after an overflow."""
    scratch: dict[Slot, int] = field(default_factory=dict)

    def operand(self, operand: Operand) -> int:
        """Most elements of an operand."""
        if not operand.is_list:
            return self.batch_size
        if operand.slot.node is not None:
            return self.scratch[operand.slot]
        return self.columns[operand.slot.name]

    def stage(self, stage: Stage) -> int:
        """Most elements of a stage's result; remembered if it is scratch. Raises ValueError past int32."""
        structure, rows = stage.structure, self.batch_size
        held = min(self.operand(stage.operand), stage.limit_before * rows)
        if structure.kind == "ngram" or structure.kind == "onehot":
            held *= structure.parameter
        elif structure.kind == "fill_rows":
            held += rows
        elif structure.kind == "cartesian":
            assert structure.other is not None
            room = CARTESIAN_ROOM * self.growth * (held + self.operand(structure.other))
            held = min(structure.parameter * rows, room)
        held = min(held, stage.limit_after * rows)
        if held > MAX_ELEMENTS:
            raise ValueError(
                f"feature {stage.feature} may need {held} elements a batch, more than 2^31 - 1; "
                "use a smaller batch, or shorten its lists with firstx before the op that lengthens them"
            )
        if stage.destination.slot is not None:
            self.scratch[stage.destination.slot] = held
        return held
