"""A column of text as values of a type, with the rows whose text is no such value told apart."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rap_trainer.stream.dead_letters import BadReason

_HUGE_INTEGER = re.compile(r"\s*[+-]?\d{10,}\s*")


def cast_text(text: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The string array as `arrow`, null where a row is bad, and the bad rows.

    Judges as Arrow's CSV reader does: whitespace around a number is no fault. Time goes with the number of bad
    rows and the logarithm of all.
    """
    if pa.types.is_binary(arrow):
        return text.cast(arrow), []
    text = pc.ascii_trim_whitespace(text)
    bad: list[int] = []
    waiting = [(0, len(text))]
    while waiting:
        start, stop = waiting.pop()
        try:
            whole = text.slice(start, stop - start).cast(arrow)
        except pa.ArrowInvalid:
            middle = (start + stop) // 2
            if stop - start == 1:
                bad.append(start)
            else:
                waiting += [(start, middle), (middle, stop)]
    if not bad:
        return whole, bad
    is_bad = np.zeros(len(text), np.bool_)
    is_bad[bad] = True
    return pc.if_else(pa.array(is_bad), pa.scalar(None, text.type), text).cast(arrow), bad


def reason_of(value: str, arrow: pa.DataType) -> BadReason:
    """Why a text is no value of the type: an integer too large, or something else altogether."""
    huge = pa.types.is_integer(arrow) and _HUGE_INTEGER.fullmatch(value) is not None
    return BadReason.OUT_OF_RANGE if huge else BadReason.UNPARSEABLE
