"""positive_modulus: floor-mod."""

from __future__ import annotations

from rap_contract.ops.positive_modulus import PositiveModulus

from rap_trainer.fusion.ops.step import Step, divisor_words


def encode(op: PositiveModulus) -> Step:
    """The op as a step; its element function is `floor_mod`."""
    return Step(name="positive_modulus", parameters=divisor_words(op.n))
