"""Hexadecimal text to 64-bit integers, a whole column at a time (Criteo's categories)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_BAD = 0xFF
_NIBBLES = np.full(256, _BAD, np.uint8)
_NIBBLES[ord("0") : ord("9") + 1] = np.arange(10)
_NIBBLES[ord("a") : ord("f") + 1] = np.arange(10, 16)
_NIBBLES[ord("A") : ord("F") + 1] = np.arange(10, 16)
MAX_DIGITS = 16  # of a 64-bit number


def parse_hex(text: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Values of a string or binary array, and True where the text is no number of 1 to 16 digits.

    Nulls give value 0 and False.
    """
    if pa.types.is_large_string(text.type) or pa.types.is_large_binary(text.type):
        text = text.cast(pa.binary())
    if len(text) == 0:
        return np.zeros(0, np.uint64), np.zeros(0, np.bool_)
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(text) + 1, text.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    nulls = np.zeros(len(text), np.bool_) if text.null_count == 0 else text.is_null().to_numpy(zero_copy_only=False)
    bad = (lengths < 1) | (lengths > MAX_DIGITS)
    if data_buffer is None or offsets[-1] == offsets[0]:
        return np.zeros(len(text), np.uint64), bad & ~nulls
    data = np.frombuffer(data_buffer, np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))
    nibbles = _NIBBLES[data]
    filled = np.flatnonzero(lengths > 0)
    values = np.zeros(len(text), np.uint64)
    if lengths[filled].min() == lengths[filled].max() <= MAX_DIGITS:
        values[filled], bad[filled] = _equally_long(nibbles.reshape(len(filled), -1))
    else:
        starts = offsets[:-1] - offsets[0]
        bad[filled] |= np.maximum.reduceat(nibbles, starts[filled]) == _BAD
        places = np.repeat(starts + lengths, lengths) - np.arange(len(data)) - 1  # 0 is the last digit of its text
        weighted = nibbles.astype(np.uint64) << (4 * (places % MAX_DIGITS)).astype(np.uint64)
        values[filled] = np.add.reduceat(weighted, starts[filled])
    return np.where(bad | nulls, np.uint64(0), values), bad & ~nulls


def _equally_long(nibbles: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The same for texts of one length, [texts, digits]: Criteo's, and ten times faster."""
    values = np.zeros(len(nibbles), np.uint64)
    bad = np.zeros(len(nibbles), np.bool_)
    for digits in nibbles.T:
        values <<= np.uint64(4)
        values |= digits
        bad |= digits == _BAD
    return values, bad
