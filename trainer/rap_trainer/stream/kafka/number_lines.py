"""JSON lines that all have the keys of the first one, in its order and spacing, and numbers or null as values: by position.

A serializer writes lines of one shape, so all lines can be read side by side, key by key: the sixteen bytes of a value and
of what stands before the next one are loaded for each line, and become numbers in some sixty vectorised steps. Nothing is
guessed: each byte between values is compared with the first line's, wanted values are held to JSON's grammar, and a block
with anything else in it is left to Arrow, which also finds the lines that are no JSON at all. Values of keys that nobody
wants are passed over unread.

Shapes: R lines. Words are eight bytes of a line, the first one lowest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Uint8s = npt.NDArray[np.uint8]
Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WORD, PAIR = 8, 16
"""Bytes that are loaded at once."""
MAX_PAIRS = 2
"""Of a value; one that does not end in them is Arrow's."""
ROWS_AT_ONCE = 4096
"""Their values of one key, and what is made on the way, stay in a core's cache (here, 2026-11)."""
MAX_PIECE = 256
"""Bytes between values."""
MAX_DIGITS = 19
"""64 bits hold so many, whichever they are."""
MAX_SLOW_RATIO = 0.02  # of a column's values that Python reads, such as 1e-05: 0.5 us each, where Arrow takes 0.2
_FIELD = re.compile(rb'([{,][ \t]*"([^"\\\n]*)"[ \t]*:[ \t]*)(?:-?[0-9][-+.eE0-9]*|null)([ \t]*)')
_TAIL = re.compile(rb"[ \t]*}[ \t\r]*")
_NUMBER = re.compile(rb"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ONES = 0x0101010101010101
_LOW, _ZEROS, _HIGH, _OVER_NINE = (np.uint64(_ONES * byte) for byte in (1, 0x30, 0x80, 0x76))
_NULL, _FOUR = np.uint64(int.from_bytes(b"null", "little")), np.uint64(0xFFFFFFFF)
_TENS = np.uint64(10) ** np.arange(MAX_DIGITS + 1, dtype=np.uint64)
_EMPTY_BITS = np.arange(64, -8, -8, dtype=np.uint64)
"""Of a word with so many bytes."""
_EXACT = np.uint64(1 << 53)  # whole numbers up to here are doubles, and so are powers of ten up to the 22nd
_NEAR = 2.0**-51  # of a double: more than two roundings can do
_DTYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
_LARGEST = {
    pa.int32(): np.uint64(np.iinfo(np.int32).max),
    pa.int64(): np.uint64(np.iinfo(np.int64).max),
    pa.float32(): _EXACT,
    pa.float64(): _EXACT,
}
"""Whole numbers that are what they are in a column of such a type; a negative one more is Arrow's."""


class NotOfThisShape(Exception):
    """Arrow has to read this block."""


class _Piece(NamedTuple):
    """What stands between two values; behind the last one also the line's end."""

    length: int
    words: Uint64s
    masks: Uint64s
    """Bits of the words that are the piece's."""
    end: int
    """Its first byte: what ends the value before it."""

    @classmethod
    def of(cls, text: bytes) -> _Piece:
        padded = -(-len(text) // PAIR) * PAIR
        words = np.frombuffer(text.ljust(padded, b"\0"), "<u8")
        masks = np.frombuffer((b"\xff" * len(text)).ljust(padded, b"\0"), "<u8")
        return cls(len(text), words, masks, text[0])


class _Digits(NamedTuple):
    """The digits that stand at a place of each line: what they are worth, and how many there are, maybe none."""

    values: Uint64s
    lengths: Uint8s

    def make_number(self, begin: Uint8s) -> Bools:
        """Which are a whole number as JSON has them, of at most MAX_DIGITS: a zero begins none but itself."""
        some = (self.lengths > 0) & (self.lengths <= MAX_DIGITS)
        return np.asarray(some & ((begin != ord("0")) | (self.lengths == 1)))


def _first_digits(word: Uint64s) -> tuple[Uint64s, Uint8s]:
    """What the digits that words begin with are worth, and how many they are: 0 to 8."""
    text = word ^ _ZEROS
    other = ((text + _OVER_NINE) | text) & _HIGH  # its lowest bit is right, whatever the ones above
    count = _bytes_below(other)
    text = text << _EMPTY_BITS.take(count)  # what comes before them now is worth nothing
    text = text * np.uint64(10) + (text >> np.uint64(8))  # pairs; then fours and all eight
    low, high = text & np.uint64(0x000000FF000000FF), (text >> np.uint64(16)) & np.uint64(0x000000FF000000FF)
    return (low * np.uint64(0x000F424000000064) + high * np.uint64(0x0000271000000001)) >> np.uint64(32), count


def _bytes_below(found: Uint64s) -> Uint8s:
    """How many bytes of each word are below the lowest one with its highest bit set."""
    return np.asarray(np.bitwise_count(~found & (found - np.uint64(1))) >> np.uint8(3))


class _Lines:
    """The bytes of some lines."""

    def __init__(self, block: bytes, num_lines: int) -> None:
        self._padded = block + bytes(MAX_PIECE + 2 * MAX_PAIRS * PAIR)
        self._bytes_B = np.frombuffer(self._padded, np.uint8)
        self._pairs_B = np.ndarray((len(self._padded) - PAIR + 1,), f"V{PAIR}", self._padded, strides=(1,))
        ends = np.flatnonzero(self._bytes_B == ord("\n"))
        if len(ends) != num_lines or not block.endswith(b"\n"):
            raise NotOfThisShape
        self.begins_R, self.ends_R = np.append(0, ends[:-1] + 1), ends + 1

    def bytes_at(self, places: Int64s) -> Uint8s:
        """One at each place."""
        return self._bytes_B.take(places, mode="clip")

    def slice(self, begin: int, length: int) -> bytes:
        """Some bytes."""
        return self._padded[begin : begin + length]

    def digits(self, places: Int64s) -> _Digits:
        """The digits from each place on; of more than MAX_DIGITS the value means nothing."""
        words = self._words(places)
        values, lengths = _first_digits(words[0])
        full = lengths == WORD
        for number in range(1, 2 * MAX_PAIRS):
            if not full.any():
                break
            if number % 2 == 0:
                words = self._words(places + WORD * number)
            more, count = _first_digits(words[number % 2])
            count *= full
            values = np.where(full, values * _TENS.take(count) + more, values)
            lengths, full = lengths + count, count == WORD
        return _Digits(values, lengths)

    def lengths(self, places: Int64s, end: int) -> Uint8s:
        """How many bytes stand from each place on, up to a byte; counted up to MAX_PAIRS."""
        lengths, ends = np.zeros(len(places), np.uint8), np.uint64(_ONES * end)
        full = np.ones(len(places), np.bool_)
        for pair in range(MAX_PAIRS):
            for word in self._words(places + PAIR * pair):
                other = word ^ ends
                count = _bytes_below((other - _LOW) & ~other & _HIGH) * full
                lengths, full = lengths + count, count == WORD
        return lengths

    def are_null(self, places: Int64s) -> Bools:
        """Whether null is written at a place."""
        return np.asarray(self._words(places)[0] & _FOUR == _NULL)

    def behind(self, places: Int64s, piece: _Piece) -> Int64s:
        """The places behind a piece, which stands at all of them. Raises NotOfThisShape."""
        for first in range(0, len(piece.words), 2):
            low, high = self._words(places + 8 * first)
            low = (low ^ piece.words[first]) & piece.masks[first]
            if (low | ((high ^ piece.words[first + 1]) & piece.masks[first + 1])).any():
                raise NotOfThisShape
        return places + piece.length

    def _words(self, places: Int64s) -> tuple[Uint64s, Uint64s]:
        # both at once: numpy takes as long to pick one word (here, 2026-11)
        pairs = self._pairs_B[places].view("<u8").reshape(-1, 2)
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


class NumberLines:
    """One shape of lines."""

    def __init__(self, names: Sequence[str], first: bytes, behind: Sequence[bytes], schema: pa.Schema) -> None:
        """`first` stands before the first value, `behind` after each; the line's end is part of it."""
        self._first, self._behind = _Piece.of(first), [_Piece.of(text) for text in behind]
        self._names, self._schema = names, schema

    @classmethod
    def of(cls, line: bytes, schema: pa.Schema) -> NumberLines | None:
        """The shape of a line, without its end; None where this is not for such lines or columns."""
        if not schema.names or any(kind not in _DTYPES for kind in schema.types):
            return None
        pieces: list[bytes] = []
        names: list[str] = []
        place, before = 0, b""
        while (found := _FIELD.match(line, place)) is not None and found[1].startswith(b"{") == (place == 0):
            pieces.append(before + found[1])
            names.append(found[2].decode("utf-8", "replace"))
            place, before = found.end(), found[3]
        tail = before + line[place:]
        if _TAIL.fullmatch(tail) is None or len(set(names)) < len(names) or not set(schema.names) <= set(names):
            return None
        if max(map(len, [*pieces, tail])) >= MAX_PIECE:
            return None
        return cls(names, pieces[0], [*pieces[1:], tail + b"\n"], schema)

    def batch(self, block: bytes, num_rows: int) -> pa.RecordBatch:
        """The wanted columns of so many lines, each with its end. Raises NotOfThisShape."""
        lines = _Lines(block, num_rows)
        firsts = range(0, num_rows, ROWS_AT_ONCE)
        parts = [self._part(lines, slice(first, first + ROWS_AT_ONCE)) for first in firsts]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _part(self, lines: _Lines, rows: slice) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        places_R = lines.behind(lines.begins_R[rows], self._first)
        for name, piece in zip(self._names, self._behind, strict=True):
            if name in self._schema.names:
                columns[name], ends_R = _column(lines, places_R, self._schema.field(name).type, end=piece.end)
            else:
                ends_R = places_R + lines.lengths(places_R, piece.end)
            places_R = lines.behind(ends_R, piece)
        if (places_R != lines.ends_R[rows]).any():
            raise NotOfThisShape
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def _column(lines: _Lines, places_R: Int64s, kind: pa.DataType, *, end: int) -> tuple[pa.Array, Int64s]:
    """The values that stand at these places, and where they end. Raises NotOfThisShape."""
    begin_R = lines.bytes_at(places_R)
    negative_R = begin_R == ord("-")
    has_negative = bool(negative_R.any())
    if has_negative:
        places_R = places_R + negative_R
        begin_R = lines.bytes_at(places_R)
    digits = lines.digits(places_R)
    ends_R = places_R + digits.lengths
    good_R = digits.make_number(begin_R) & (lines.bytes_at(ends_R) == end) & (digits.values <= _LARGEST[kind])
    values_R: npt.NDArray[Any] = digits.values.astype(_DTYPES[kind])
    null_R: Bools | None = None
    if not good_R.all():
        odd = np.flatnonzero(~good_R)
        lengths = lines.lengths(places_R[odd], end)
        ends_R[odd] = places_R[odd] + lengths
        is_null = lines.are_null(places_R[odd]) & (lengths == len(b"null")) & ~negative_R[odd]
        null_R = np.zeros(len(places_R), np.bool_)
        null_R[odd[is_null]] = True
        values_R[null_R] = 0
        odd, lengths = odd[~is_null], lengths[~is_null]
        if len(odd):
            if pa.types.is_integer(kind):
                raise NotOfThisShape
            values_R[odd] = _fractions(lines, places_R[odd], lengths, is_double=kind == pa.float64())
    if has_negative:
        np.negative(values_R, out=values_R, where=negative_R)
    return _array(values_R, null_R, kind), ends_R


def _fractions(lines: _Lines, starts: Int64s, lengths: Uint8s, *, is_double: bool) -> Float64s:
    """Numbers of such lengths that are not whole. Raises NotOfThisShape where one is none, or has two float32."""
    whole = lines.digits(starts)
    part = lines.digits(starts + whole.lengths + 1)
    good = whole.make_number(lines.bytes_at(starts)) & (part.lengths > 0) & (lengths <= MAX_DIGITS + 1)
    good &= (lines.bytes_at(starts + whole.lengths) == ord(".")) & (whole.lengths + part.lengths + 1 == lengths)
    places = np.where(good, part.lengths, 0)
    values = whole.values * _TENS.take(places) + part.values
    floats: Float64s = values.astype(np.float64) / _TENS.take(places).astype(np.float64)
    good &= (values <= _EXACT) if is_double else ((values <= _EXACT) | _is_sure(floats))
    slow = np.flatnonzero(~good).tolist()
    if len(slow) > MAX_SLOW_RATIO * len(lines.begins_R):
        raise NotOfThisShape
    for index in slow:
        written = lines.slice(int(starts[index]), int(lengths[index]))
        if _NUMBER.fullmatch(written) is None:
            raise NotOfThisShape
        floats[index] = float(written)
    if not np.isfinite(floats if is_double else _as_float32(floats)).all() or not (is_double or _is_sure(floats).all()):
        raise NotOfThisShape
    return floats


def _is_sure(floats: Float64s) -> Bools:
    """Which doubles are the same as float32 whatever the last roundings before did."""
    return np.asarray(_as_float32(floats * (1 - _NEAR)) == _as_float32(floats * (1 + _NEAR)))


def _as_float32(floats: Float64s) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return floats.astype(np.float32)


def _array(values_R: npt.NDArray[Any], null_R: Bools | None, kind: pa.DataType) -> pa.Array:
    valid = None if null_R is None else pa.py_buffer(np.packbits(~null_R, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values_R), [valid, pa.py_buffer(values_R)])
