"""min_max: (x - lo) / (hi - lo)."""

from __future__ import annotations

from rap_contract.ops.min_max import MinMax

from rap_trainer.fusion.ops.step import Step, float_word


def encode(op: MinMax) -> Step:
    """The op as a step of standardize's element function."""
    return Step(name="affine", parameters=(float_word(op.lo), float_word(op.hi - op.lo)))
