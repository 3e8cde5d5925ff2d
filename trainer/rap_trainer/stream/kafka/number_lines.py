"""JSON lines that all have the keys of the first one, in its order and spacing, and numbers or null as values: by position.

A serializer writes lines of one shape, so commas and line ends say where every value of a block stands. All values of some
lines become numbers in one of Arrow's vectorised casts, the parser that its JSON reader uses as well, without a look for
keys. Nothing is guessed: what stands between values is compared with the first line, wanted values are held to JSON's
grammar, and a block with anything else in it is left to Arrow's JSON reader, which also finds the lines that are no JSON
at all. Values of keys that nobody wants are passed over unread.

Shapes: R lines, K values of a line, E = 2 K + 1 texts of a line (values, and the pieces around them), W wanted values,
B bytes of a block.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Uint8s = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

ROWS_AT_ONCE = 1024
"""Their bytes, and what is made of them on the way, stay in a core's cache (here, 2026-11)."""
SCAN_BYTES = 128 << 10
"""Looked through at once for commas, for the same reason."""
MAX_PIECES_BYTES = 8 << 10  # of a line; they are kept as often as ROWS_AT_ONCE
MAX_BLOCK_BYTES = (1 << 31) - 1  # places are 32 bits
_FIELD = re.compile(rb'([{,][ \t]*"([^"\\\n]*)"[ \t]*:[ \t]*)(?:-?[0-9][-+.eE0-9]*|null)([ \t]*)')
_TAIL = re.compile(rb"[ \t]*}[ \t\r]*")
_COMMA, _NEWLINE, _MINUS, _ZERO, _POINT, _N, _E = b",\n-0.ne"
_NULL = np.uint32(int.from_bytes(b"null", "little"))
_LOWER = np.uint8(0x20)  # makes a letter a small one
_DTYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}


class NotOfThisShape(Exception):
    """Arrow has to read this block."""


class _Texts(NamedTuple):
    """Some lines in their texts."""

    text_B: Uint8s
    """The whole block."""
    bounds: Int32s
    """[R * E + 1] where each text begins, line by line, and the end."""
    begins_RW: Int32s
    """Of wanted values."""
    widths_RW: Int32s

    def strings(self, kind: pa.DataType, valid: pa.Buffer) -> pa.Array:
        """All texts; those that are not `valid` are null."""
        buffers = [valid, pa.py_buffer(self.bounds), pa.py_buffer(self.text_B)]
        return pa.Array.from_buffers(kind, len(self.bounds) - 1, buffers)


class _Begins(NamedTuple):
    """How wanted values begin."""

    null_RW: Bools
    negative_RW: Bools
    zero_RW: Bools
    """A zero begins the number and is not all of it, or it is -0: only fractions do that."""


class NumberLines:
    """One shape of lines."""

    def __init__(self, pieces: Sequence[bytes], wanted: Sequence[int], schema: pa.Schema) -> None:
        """`pieces` stand before, between and behind the values, the line's end included; `wanted` number values from 0."""
        self._schema = schema
        self._lengths_K = np.array([len(piece) for piece in pieces[:-1]], np.int32)
        places = [piece.index(b",") for piece in pieces[1:-1]]
        self._marks_K = np.array([*places, len(pieces[-1]) - 1], np.int32)
        """Where in the piece behind each value its comma or line end is."""
        self._begins_W = 2 * np.array(wanted) + 1
        self._float_W = np.array([pa.types.is_floating(kind) for kind in schema.types])
        self._whole_W = np.ones(len(wanted), np.bool_)
        """Columns whose numbers were all whole so far; they are read faster."""
        self._pieces, self._at_pieces = _repeated(pieces)
        self._points_e = sum(len(re.findall(rb"\.[eE]", piece)) for piece in pieces)

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
        pieces.append(tail + b"\n")
        if any("," in name for name in names) or sum(map(len, pieces)) > MAX_PIECES_BYTES:
            return None
        return cls(pieces, [names.index(name) for name in schema.names], schema)

    def batch(self, block: bytes, num_rows: int) -> pa.RecordBatch:
        """The wanted columns of so many lines, each with its end. Raises NotOfThisShape."""
        text_B = np.frombuffer(block, np.uint8)
        marks = _marks(text_B)
        if len(marks) != num_rows * len(self._marks_K) or len(block) > MAX_BLOCK_BYTES or not block.endswith(b"\n"):
            raise NotOfThisShape
        marks_RK = marks.reshape(num_rows, -1)
        begins_R = np.append(0, marks_RK[:-1, -1] + 1)
        columns: list[npt.NDArray[Any]] = [np.empty(num_rows, _DTYPES[kind]) for kind in self._schema.types]
        null_WR = np.empty((len(columns), num_rows), np.bool_)
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            texts = self._texts(text_B, begins_R[rows], marks_RK[rows])
            begins = _begins(texts)
            null_WR[:, rows] = begins.null_RW.T
            self._read(texts, begins, [column[rows] for column in columns])
        arrays = [_array(*each) for each in zip(columns, null_WR, self._schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _texts(self, text_B: Uint8s, begins_R: Int64s, marks_RK: Int64s) -> _Texts:
        """These lines, whose pieces are the shape's. Raises NotOfThisShape."""
        num_rows, num_values = marks_RK.shape
        bounds = np.empty(num_rows * (2 * num_values + 1) + 1, np.int32)
        bounds_RE = bounds[:-1].reshape(num_rows, -1)
        bounds_RE[:, 0], bounds[-1] = begins_R, marks_RK[-1, -1] + 1
        np.subtract(marks_RK, self._marks_K, out=bounds_RE[:, 2::2], casting="unsafe")
        np.add(bounds_RE[:, :-1:2], self._lengths_K, out=bounds_RE[:, 1::2])
        widths_RK = bounds_RE[:, 2::2] - bounds_RE[:, 1::2]
        if widths_RK.min() < 1:
            raise NotOfThisShape
        begins_RW = bounds_RE.take(self._begins_W, axis=1)
        texts = _Texts(text_B, bounds, begins_RW, widths_RK.take(self._begins_W // 2, axis=1))
        pieces = texts.strings(pa.binary(), self._at_pieces)
        if not pc.all(pc.equal(pieces, self._pieces.slice(0, len(pieces)))).as_py():
            raise NotOfThisShape
        return texts

    def _read(self, texts: _Texts, begins: _Begins, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Fills the columns of these lines. Raises NotOfThisShape."""
        self._whole_W &= ~begins.zero_RW.any(axis=0)
        if not (self._whole_W | self._float_W).all():
            raise NotOfThisShape
        try:
            self._cast(texts, begins, columns, self._whole_W, pa.int64())
        except NotOfThisShape:
            if not (self._whole_W & self._float_W).any():
                raise
            self._whole_W &= ~self._float_W
            self._cast(texts, begins, columns, self._whole_W, pa.int64())
        if self._whole_W.all():
            return
        _require_fractions(texts, begins, ~self._whole_W, points_e=self._points_e)
        for kind in (pa.float32(), pa.float64()):
            of_kind_W = np.array([each == kind for each in self._schema.types]) & ~self._whole_W
            self._cast(texts, begins, columns, of_kind_W, kind)

    def _cast(
        self, texts: _Texts, begins: _Begins, columns: Sequence[npt.NDArray[Any]], which_W: Bools, kind: pa.DataType
    ) -> None:
        """Fills some columns with numbers of Arrow's type `kind`. Raises NotOfThisShape."""
        if not which_W.any():
            return
        num_rows, num_texts = len(begins.null_RW), 2 * len(self._marks_K) + 1
        valid_RE = np.zeros((num_rows, num_texts), np.bool_)
        valid_RE[:, self._begins_W[which_W]] = ~begins.null_RW[:, which_W]
        try:
            cast = texts.strings(pa.string(), pa.py_buffer(np.packbits(valid_RE, bitorder="little"))).cast(kind)
        except pa.ArrowInvalid as error:
            raise NotOfThisShape from error
        numbers_RE = np.frombuffer(cast.buffers()[1], _DTYPES[kind], num_rows * num_texts).reshape(num_rows, -1)
        for index in np.flatnonzero(which_W).tolist():
            numbers_R = numbers_RE[:, self._begins_W[index]]
            columns[index][:] = numbers_R
            if columns[index].dtype == np.int32 and (columns[index] != numbers_R).any():
                raise NotOfThisShape
            if pa.types.is_floating(kind) and not np.isfinite(numbers_R).all():
                raise NotOfThisShape


def _repeated(pieces: Sequence[bytes]) -> tuple[pa.Array, pa.Buffer]:
    """The texts of ROWS_AT_ONCE lines with empty ones for values, and a bit for each: it is a piece."""
    lengths_E = np.zeros(2 * len(pieces) - 1, np.int64)
    lengths_E[::2] = [len(piece) for piece in pieces]
    ends = np.cumsum(np.tile(lengths_E, ROWS_AT_ONCE))
    buffers = [None, pa.py_buffer(np.append(0, ends).astype(np.int32)), pa.py_buffer(b"".join(pieces) * ROWS_AT_ONCE)]
    is_piece = np.tile(np.arange(len(lengths_E)) % 2 == 0, ROWS_AT_ONCE)
    valid = pa.py_buffer(np.packbits(is_piece, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers), valid


def _marks(text_B: Uint8s) -> Int64s:
    """Where commas and line ends are."""
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(text_B), SCAN_BYTES):
        some = text_B[begin : begin + SCAN_BYTES]
        is_mark = some == _COMMA
        is_mark |= some == _NEWLINE
        found.append(np.flatnonzero(is_mark) + begin)
    return np.concatenate(found)


def _begins(texts: _Texts) -> _Begins:
    """How the values begin: each as a number or as null. Raises NotOfThisShape."""
    text_B, begins_RW, widths_RW = texts.text_B, texts.begins_RW, texts.widths_RW
    first_RW = text_B.take(begins_RW, mode="clip")
    null_RW = first_RW == _N
    negative_RW = first_RW == _MINUS
    if negative_RW.any():
        first_RW = text_B.take(begins_RW + negative_RW, mode="clip")
    if (~_are_digits(first_RW) & ~null_RW).any():
        raise NotOfThisShape
    nulls = np.flatnonzero(null_RW)
    words_B = np.ndarray((len(text_B) - 3,), "<u4", text_B, strides=(1,))
    if (widths_RW.ravel()[nulls] != len(b"null")).any() or (words_B[begins_RW.ravel()[nulls]] != _NULL).any():
        raise NotOfThisShape
    return _Begins(null_RW, negative_RW, (first_RW == _ZERO) & (widths_RW > 1))


def _require_fractions(texts: _Texts, begins: _Begins, which_W: Bools, *, points_e: int) -> None:
    """Holds some columns to the grammar where Arrow's parser knows more numbers than JSON: 01, 1. and 1.e5.

    `points_e` is how often a point and an e stand beside each other in the pieces of a line. Raises NotOfThisShape.
    """
    text_B, number_RW = texts.text_B, (~begins.null_RW & which_W)
    ends = (texts.begins_RW + texts.widths_RW)[number_RW]
    zeros = (texts.begins_RW + begins.negative_RW)[begins.zero_RW & number_RW]
    widths = (texts.widths_RW - begins.negative_RW)[begins.zero_RW & number_RW]
    if not _are_digits(text_B.take(ends - 1)).all() or (_are_digits(text_B.take(zeros + 1)) & (widths > 1)).any():
        raise NotOfThisShape
    begin, end = int(texts.bounds[0]), int(texts.bounds[-1])
    points = np.flatnonzero(text_B[begin:end] == _POINT) + begin
    if np.count_nonzero((text_B.take(points + 1) | _LOWER) == _E) != points_e * len(begins.null_RW):
        raise NotOfThisShape


def _are_digits(bytes_: Uint8s) -> Bools:
    return np.asarray(bytes_ - np.uint8(_ZERO) <= 9)  # others wrap around


def _array(values_R: npt.NDArray[Any], null_R: Bools, kind: pa.DataType) -> pa.Array:
    valid = pa.py_buffer(np.packbits(~null_R, bitorder="little")) if null_R.any() else None
    return pa.Array.from_buffers(kind, len(values_R), [valid, pa.py_buffer(values_R)])
