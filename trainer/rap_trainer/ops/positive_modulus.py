"""positive_modulus: x - n * floor(x / n)."""

from __future__ import annotations

from rap_contract.ops.positive_modulus import PositiveModulus

from rap_trainer.ops.modulus import floor_mod_
from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: PositiveModulus, value: Value, references: References, context: Context) -> Value:
    """Remainders in [0, n), in the ids' own type."""
    del references, context
    return value.with_values(floor_mod_(elements(value).clone(), op.n))
