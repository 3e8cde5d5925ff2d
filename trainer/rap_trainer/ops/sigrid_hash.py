"""sigrid_hash: floor_mod(signed(hash_128_to_64(u=salt, l=twang_mix64(x))), max_value), int64."""

from __future__ import annotations

import torch
from rap_contract.ops.sigrid_hash import SigridHash

from rap_trainer.ops.hashing import hash_128_to_64, twang_mix64
from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: SigridHash, value: Value, references: References, context: Context) -> Value:
    """Each id as a row of a table; int32 ids are widened first."""
    del references, context
    assert op.max_value is not None, "the graph fills it in"
    hashed_N = hash_128_to_64(op.salt, twang_mix64(elements(value).to(torch.int64)))
    return value.with_values(hashed_N.remainder_(op.max_value))
