"""enumerate: the position of an element in its list."""

from __future__ import annotations

from rap_trainer.fusion.ops.step import Step


def encode() -> Step:
    """The op as a step; its element function gives the position."""
    return Step(name="enumerate")
