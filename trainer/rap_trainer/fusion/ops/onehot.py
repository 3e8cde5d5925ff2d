# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""onehot: class = trunc((x - low) / step), outside [0, classes) and NaN -> 0; element k is 1 if class = k."""

from __future__ import annotations

import triton
import triton.language as tl
from rap_contract.ops.onehot import Onehot

from rap_trainer.fusion.ops.elements import flag
from rap_trainer.fusion.ops.step import Step, float_parameter, float_word


def encode(op: Onehot, position: int | None) -> Step:
    """The op as a step: (low, width of a class, classes, class asked for or -1)."""
    width = (op.high - op.low) / op.classes
    asked = -1 if position is None else position % op.classes
    return Step(name="onehot", parameters=(float_word(op.low), float_word(width), op.classes, asked))


@triton.jit
def onehot(x, position, step):
    """1 where the class of x is the one asked for, or `position` modulo the number of classes; int64."""
    low = float_parameter(step, 1, x)
    width = float_parameter(step, 2, x)
    classes = tl.load(step + 3)
    scaled = (x - low) / width
    inside = flag(scaled > -1.0) & flag(scaled < classes.to(x.dtype))
    index = tl.where(inside, scaled, 0.0).to(tl.int64)
    asked = tl.load(step + 4)
    return tl.where(index == tl.where(asked >= 0, asked, position % classes), 1, 0).to(tl.int64)
