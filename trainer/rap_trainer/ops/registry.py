"""The eager twin of every op, found by the op's stem: `rap_trainer.ops.<stem>.apply`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from rap_contract.ops import OPS, Op

from rap_trainer.ops.value import Context, References, Value


class Twin(Protocol):
    """An op as vectorised PyTorch. Writes into no input and never waits for a device."""

    def __call__(self, op: Op, value: Value, references: References, context: Context) -> Value: ...


class SideBySideTwin(Protocol):
    """An op on several columns at once that may differ in some of its parameters."""

    def __call__(self, ops: Sequence[Op], value: Value, sizes: Sequence[int]) -> Value: ...


_MODULES = {stem: importlib.import_module(f"rap_trainer.ops.{stem}") for stem in OPS}
TWINS: dict[str, Twin] = {stem: cast(Twin, module.apply) for stem, module in _MODULES.items()}
"""By stem. An op without its twin fails at import, not in a job."""
SIDE_BY_SIDE: dict[str, SideBySideTwin] = {
    stem: cast(SideBySideTwin, module.apply_side_by_side)
    for stem, module in _MODULES.items()
    if hasattr(module, "apply_side_by_side")
}
FREE_PARAMETERS: dict[str, frozenset[str]] = {stem: _MODULES[stem].FREE for stem in SIDE_BY_SIDE}
"""Parameters in which the columns of a side-by-side call may differ."""


def apply(op: Op, value: Value, references: References, context: Context) -> Value:
    """The op's result on a batch."""
    return TWINS[op.stem](op, value, references, context)
