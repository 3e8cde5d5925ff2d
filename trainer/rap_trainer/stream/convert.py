"""Arrow arrays as columns of the declared types: the rules, and the vectorised conversion.

What is allowed follows from the types alone, so a file is judged by its schema before any row is
read. The declaration is explicit, so an integer may become a float; a float never becomes an integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from rap_contract.types import Dtype, ValueType

from rap_trainer.batch import Block
from rap_trainer.stream.kept_memory import KEPT
from rap_trainer.stream.rows import ColumnRows, Int32s, empty, matrix

SHARED_ROWS = 16_384
"""From so many rows on, a column that needs no conversion stays Arrow's: copying it would cost more (1.3 ns a value) than
joining and cutting it apart from the matrix (1 us a batch); 2 Xeon cores, 2026-11."""
Bools = npt.NDArray[np.bool_]
_NUMPY: dict[Dtype, type[np.generic]] = {
    Dtype.INT32: np.int32,
    Dtype.INT64: np.int64,
    Dtype.FLOAT32: np.float32,
    Dtype.FLOAT64: np.float64,
}
_ARROW_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}  # the rest are numpy's own


def element_type(arrow: pa.DataType) -> tuple[pa.DataType, bool]:
    """The type of the values under dictionaries and one level of lists, and whether there is a list."""
    arrow = _plain(arrow)
    if _is_list(arrow):
        return _plain(arrow.value_type), True
    return arrow, False


def refusal(arrow: pa.DataType, declared: ValueType) -> str | None:
    """Why an Arrow type cannot be read as the declared one, as a hint for the user; None if it can."""
    element, is_list = element_type(arrow)
    if is_list and not declared.is_list:
        return f"a list where a single value is due: declare list<{declared.dtype}>, or write one value a row"
    if pa.types.is_null(element):
        return None
    if pa.types.is_floating(element):
        return "an integer column never takes floats: declare a float type" if declared.dtype.is_integer else None
    if pa.types.is_boolean(element) or (pa.types.is_integer(element) and not declared.dtype.is_integer):
        return None
    if pa.types.is_integer(element):
        signed_bits = element.bit_width + (1 if pa.types.is_unsigned_integer(element) else 0)
        # uint64 ids mostly fit int64; the rows whose ids do not are found one by one
        if signed_bits <= 8 * declared.dtype.num_bytes or (signed_bits == 65 and declared.dtype is Dtype.INT64):
            return None
        return "values could be lost: declare a wider type"
    if is_text(element):
        return "text: write numbers, or name the column in csv.hexColumns if it holds hexadecimal ids"
    return "only integers, floats and lists of them are columns of a job"


def is_text(arrow: pa.DataType) -> bool:
    """Strings or bytes with variable length."""
    types = pa.types
    return bool(
        types.is_string(arrow) or types.is_binary(arrow) or types.is_large_string(arrow) or types.is_large_binary(arrow)
    )


def is_plain(arrow: pa.DataType) -> bool:
    """Whether `plain_array` gives arrays of this type back as they are."""
    if not _is_list(arrow):
        return bool(_plain(arrow).equals(arrow))
    return bool(pa.types.is_list(arrow) and _plain(arrow.value_type).equals(arrow.value_type))


def plain_array(array: pa.Array) -> pa.Array:
    """The array without dictionary, run-end encoding or special list layout."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _from_views(array)
    if _is_list(array.type):
        plain = pa.list_(_plain(array.type.value_type))
        return array if array.type.equals(plain) else array.cast(plain)
    return array


def convert(
    arrays: Mapping[str, pa.Array], declared: Mapping[str, ValueType], *, owned: bool = False
) -> tuple[dict[str, ColumnRows], tuple[Block, ...]]:
    """Plain arrays of equal length as columns of the declared types, and the matrices some of them are in.

    Columns keep Arrow's memory where they can, and are written over there if it is `owned`; other arrays with one value
    a row are copied into one matrix a dtype. Those of few rows, or for a GPU that copies from pinned
    memory, all are. The types must have passed `refusal`.
    """
    num_rows = len(next(iter(arrays.values()), ()))
    owned = owned and not KEPT.pinned
    may_share = num_rows >= SHARED_ROWS and not KEPT.pinned
    flat = [
        name
        for name, array in arrays.items()
        if not (pa.types.is_list(array.type) or (may_share and _stays(array, declared[name].dtype, owned)))
    ]
    values: dict[str, npt.NDArray[Any]] = {}
    blocks = []
    for dtype in Dtype:
        names = tuple(name for name in flat if declared[name].dtype is dtype)
        if names:
            values_CR = matrix(len(names), num_rows, _NUMPY[dtype])
            values |= zip(names, values_CR, strict=True)
            blocks.append(Block(names=names, field="values", data_CB=torch.from_numpy(values_CR)))
    nulls: dict[str, Bools] = {}
    with_nulls = tuple(name for name in values if arrays[name].null_count)
    if with_nulls:
        nulls_CR = matrix(len(with_nulls), num_rows, np.bool_)
        nulls |= zip(with_nulls, nulls_CR, strict=True)
        blocks.append(Block(names=with_nulls, field="nulls", data_CB=torch.from_numpy(nulls_CR)))
    columns: dict[str, ColumnRows] = {}
    for name, array in arrays.items():
        if name in values:
            valid = _valid(array)
            if valid is not None:
                np.logical_not(valid, out=nulls[name])
            _fill(values[name], array, valid)
            columns[name] = ColumnRows(values=values[name], nulls=nulls.get(name), is_list=declared[name].is_list)
        elif pa.types.is_list(array.type):
            columns[name] = _list_column(array, declared[name], owned)
        else:
            own, own_nulls = _values(array, declared[name].dtype, owned)
            columns[name] = ColumnRows(values=own, nulls=own_nulls, is_list=declared[name].is_list)
    return columns, tuple(blocks)


def _list_column(array: pa.Array, declared: ValueType, owned: bool) -> ColumnRows:
    """A list array as a column. A null list becomes a list with one null element."""
    offsets = list_offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    values, nulls = _values(array.values.slice(first, last - first), declared.dtype, owned)
    offsets = offsets - first if first else offsets
    column = ColumnRows(values=values, nulls=nulls, offsets_R1=offsets, is_list=True)
    null_rows = null_mask(array)
    return column if null_rows is None else _with_null_lists(column, null_rows)


def list_offsets(array: pa.ListArray) -> Int32s:
    """[R + 1] offsets of a list array into `array.values`."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def raw_values(array: pa.Array) -> npt.NDArray[Any]:
    """The data of a primitive array as numpy sees it; arbitrary where null."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    dtype = _raw_dtype(array.type)
    if len(array) == 0 or array.buffers()[1] is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


@cache
def _raw_dtype(arrow: pa.DataType) -> np.dtype[Any]:
    return np.dtype(_ARROW_NAMES.get(str(arrow), str(arrow)))


def null_mask(array: pa.Array) -> Bools | None:
    """True where null; None without nulls."""
    valid = _valid(array)
    return None if valid is None else np.logical_not(valid, out=valid)


def _valid(array: pa.Array) -> Bools | None:
    """False where null; None without nulls."""
    if array.null_count == 0:
        return None
    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    first_byte, shift = divmod(array.offset, 8)
    validity = np.frombuffer(array.buffers()[0], np.uint8, offset=first_byte)
    bits = np.unpackbits(validity, bitorder="little", count=shift + len(array))[shift:]
    return bits.view(np.bool_)


def _values(array: pa.Array, dtype: Dtype, owned: bool) -> tuple[npt.NDArray[Any], Bools | None]:
    """The array's numbers as `dtype`, and where it has nulls."""
    valid, target = _valid(array), _NUMPY[dtype]
    if not _stays(array, dtype, owned):
        values = empty(len(array), target)
        _fill(values, array, valid)
    else:
        raw = raw_values(array)
        values = (raw if raw.flags.writeable else _shared(array)).view(target)
        if valid is not None or raw.dtype != target:
            _fill(values, array, valid)
    return values, None if valid is None else np.logical_not(valid, out=valid)


def _fill(values: npt.NDArray[Any], array: pa.Array, valid: Bools | None) -> None:
    """Writes the array's numbers as the type of `values`, with zeros under nulls.

    What Arrow leaves under a null may differ from read to read.
    """
    if pa.types.is_null(array.type):
        values[:] = 0
        return
    raw = raw_values(array)
    if valid is not None:  # bits times 0 or 1: numpy's own masked copy takes 15 times as long (here, 2026-11)
        bits = f"int{8 * raw.itemsize}"
        same_size = raw.itemsize == values.itemsize
        kept = values.view(bits) if same_size else empty(len(raw), bits)
        np.multiply(raw.view(bits), valid, out=kept)
        raw = kept.view(raw.dtype)
        if raw.dtype == values.dtype:
            return
    with np.errstate(over="ignore"):  # infinities stay; finite numbers too large are bad rows before this
        np.copyto(values, raw, casting="unsafe")


def _stays(array: pa.Array, dtype: Dtype, owned: bool) -> bool:
    """Whether the column can have the array's memory: as it is, or written over."""
    if pa.types.is_null(array.type) or pa.types.is_boolean(array.type):
        return False
    raw = _raw_dtype(array.type)
    return (array.null_count == 0 and raw == _NUMPY[dtype]) or (owned and raw.itemsize == dtype.num_bytes)


def _shared(array: pa.Array) -> npt.NDArray[Any]:
    """The array's own memory. By way of a tensor: numpy would mark it read-only, of which torch warns later."""
    owner = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], 0, array.offset)
    shared: npt.NDArray[Any] = torch.from_dlpack(owner).numpy()  # type: ignore[attr-defined]  # untyped in torch
    return shared


def _with_null_lists(column: ColumnRows, null_rows: Bools) -> ColumnRows:
    """The column with each null row holding one null element, whatever Arrow's offsets say of it."""
    assert column.offsets_R1 is not None
    assert column.lengths_R is not None
    old, old_nulls, lengths = column.values, column.nulls, column.lengths_R
    null_numbers = np.flatnonzero(null_rows)
    if lengths[null_numbers].any():  # a null row may hide values
        visible = np.repeat(~null_rows, lengths)
        old, old_nulls = old[visible], None if old_nulls is None else old_nulls[visible]
        lengths = np.where(null_rows, 0, lengths)
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths + null_rows, out=offsets[1:])
    nulls = np.zeros(int(offsets[-1]), np.bool_)
    added = offsets[null_numbers]
    nulls[added] = True
    kept = np.flatnonzero(~nulls)
    values = empty(len(nulls), old.dtype)
    values[added] = 0
    values[kept] = old
    if old_nulls is not None:
        nulls[kept] = old_nulls
    return ColumnRows(values=values, nulls=nulls, offsets_R1=offsets, is_list=True)


def _from_views(array: pa.Array) -> pa.ListArray:
    """Views as plain lists. Arrow's own cast makes a broken array of them (pyarrow 25.0.1)."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), array.flatten(), mask=array.is_null())


def _plain(arrow: pa.DataType) -> pa.DataType:
    while pa.types.is_dictionary(arrow) or pa.types.is_run_end_encoded(arrow):
        arrow = arrow.value_type
    return arrow


def _is_list(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(arrow)
        or types.is_large_list(arrow)
        or types.is_fixed_size_list(arrow)
        or types.is_list_view(arrow)
        or types.is_large_list_view(arrow)
    )
