"""sigrid_hash: floor_mod(signed(hash_128_to_64(u=salt, l=twang_mix64(x))), max_value), int64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rap_contract.ops.sigrid_hash import SigridHash

from rap_trainer.ops.hashing import salted_hash
from rap_trainer.ops.modulus import floor_mod_, floor_mods_
from rap_trainer.ops.value import Context, References, Value, elements

FREE = frozenset({"max_value"})
"""Parameters in which columns of one call of `apply_side_by_side` may differ."""


def apply(op: SigridHash, value: Value, references: References, context: Context) -> Value:
    """Each id as a row of a table; int32 ids are widened first."""
    del references, context
    return value.with_values(floor_mod_(_hashed(op, value), _rows(op)))


def apply_side_by_side(ops: Sequence[SigridHash], value: Value, sizes: Sequence[int]) -> Value:
    """`apply` on columns that stand one after the other, each with its own op; `sizes` are their elements."""
    return value.with_values(floor_mods_(_hashed(ops[0], value), [_rows(op) for op in ops], sizes))


def _hashed(op: SigridHash, value: Value) -> torch.Tensor:
    return salted_hash(op.salt, elements(value).to(torch.int64))


def _rows(op: SigridHash) -> int:
    assert op.max_value is not None, "the graph fills it in"
    return op.max_value
