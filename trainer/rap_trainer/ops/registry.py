"""The eager twin of every op, found by the op's stem: `rap_trainer.ops.<stem>.apply`."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from rap_contract.ops import OPS, Op

from rap_trainer.ops.value import Context, References, Value


class Twin(Protocol):
    """An op as vectorised PyTorch. Writes into no input and never waits for a device."""

    def __call__(self, op: Op, value: Value, references: References, context: Context) -> Value: ...


TWINS: dict[str, Twin] = {stem: cast(Twin, importlib.import_module(f"rap_trainer.ops.{stem}").apply) for stem in OPS}
"""By stem. An op without its twin fails at import, not in a job."""


def apply(op: Op, value: Value, references: References, context: Context) -> Value:
    """The op's result on a batch."""
    return TWINS[op.stem](op, value, references, context)
