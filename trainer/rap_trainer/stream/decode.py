"""Arrow record batches to rows of the job's declared columns, by column name.

The schema decides once per file or stream: new columns are ignored, order does not matter, a missing
or re-typed column is a SchemaMismatch. Then each batch is decoded without a Python object per row;
rows that cannot be trained come back apart, with their reason. Nothing here knows files or Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from rap_contract.job import RAPJobSpec
from rap_contract.names import expand
from rap_contract.source import EventTime
from rap_contract.types import Dtype, ValueType

from rap_trainer.stream import convert
from rap_trainer.stream.convert import Bools
from rap_trainer.stream.dead_letters import BadReason, BadRow
from rap_trainer.stream.hexadecimal import parse_hex
from rap_trainer.stream.rows import Int64s, Rows
from rap_trainer.stream.source import SchemaMismatch

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Floats = npt.NDArray[np.float64]
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a job says about the rows it reads."""

    columns: Mapping[str, ValueType]
    label: str | None = None
    """Must be 0 or 1 in every row; None: rows have no label (`rap preprocess` for serving)."""
    event_time: EventTime = field(default_factory=EventTime)
    hex_columns: frozenset[str] = frozenset()
    """Integer columns that come as hexadecimal text."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What became of one record batch."""

    rows: Rows
    kept_rows: Int64s | None
    """Number in the batch of each good row; None: every row is good."""
    bad: tuple[BadRow, ...]


def declared_columns(spec: RAPJobSpec) -> dict[str, ValueType]:
    """The job's columns by name, patterns expanded."""
    return {name: ValueType.parse(text) for pattern, text in spec.columns.items() for name in expand(pattern)}


def declared(spec: RAPJobSpec) -> Declared:
    """What the job says about its rows. Raises ValueError for an unknown type or pattern."""
    source = spec.source.files or spec.source.kafka
    assert source is not None
    return Declared(
        columns=declared_columns(spec),
        label=spec.label,
        event_time=source.event_time,
        hex_columns=frozenset(n for pattern in source.csv.hex_columns for n in expand(pattern)),
    )


class Decoder:
    """Decodes batches of one Arrow schema, or of the declared columns of it.

    `place` names the file or topic in messages. Raises SchemaMismatch with every column that does not fit.
    """

    def __init__(self, declared: Declared, schema: pa.Schema, place: str) -> None:
        self._declared = declared
        problems = [*_column_problems(declared, schema), *_event_time_problems(declared, schema)]
        if problems:
            raise SchemaMismatch(f"{place} does not fit the job:\n" + "\n".join(f"  {text}" for text in problems))
        self._encoded = [n for n in declared.columns if not convert.is_plain(schema.field(n).type)]
        self._checked = [n for n in declared.columns if _needs_check(declared, n, schema.field(n).type)]

    def decode(self, batch: pa.RecordBatch, *, row_ids: Int64s, event_time_s: float, owned: bool = False) -> Decoded:
        """Good rows with their `row_ids` (int64 [rows of the batch]), and the bad ones.

        `event_time_s` stands in where the job names no event-time column. `owned`: nobody looks at the batch
        after this, so its memory may become the rows'.
        """
        columns = {name: batch.column(name) for name in self._declared.columns}
        columns |= {name: convert.plain_array(columns[name]) for name in self._encoded}
        time_column = self._declared.event_time.column
        times = None if time_column is None else convert.plain_array(batch.column(time_column))
        bad, columns = self._check(batch, columns)
        kept = None
        if bad:
            keep = np.ones(batch.num_rows, np.bool_)
            keep[[row.row for row in bad]] = False
            kept, mask = np.flatnonzero(keep), pa.array(keep)
            columns = {name: array.filter(mask) for name, array in columns.items()}
            times = None if times is None else times.filter(mask)
            row_ids = row_ids[keep]
        times_s_R = _event_times_s(
            times, self._declared.event_time, event_time_s, len(row_ids)
        )  # before it is written over
        converted, blocks = convert.convert(columns, self._declared.columns, owned=owned)
        rows = Rows(columns=converted, row_ids_R=row_ids, event_times_s_R=times_s_R, blocks=blocks)
        return Decoded(rows=rows, kept_rows=kept, bad=bad)

    def _check(self, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> tuple[tuple[BadRow, ...], dict[str, Any]]:
        found: dict[int, tuple[BadReason, str]] = {}
        for name in self._checked:
            array = columns[name]
            value_type = self._declared.columns[name]
            if convert.is_text(array.type):
                parsed, unparseable = parse_hex(array)
                _note(found, unparseable, BadReason.UNPARSEABLE, name, array)
                _note(found, parsed > np.uint64(2**63 - 1), BadReason.OUT_OF_RANGE, name, array)
                columns[name] = pa.array(parsed.view(np.int64), mask=convert.null_mask(array))
            elif name == self._declared.label:
                _check_label(found, array, name)
            else:
                _note(found, _out_of_range(array, value_type), BadReason.OUT_OF_RANGE, name, array)
        return tuple(
            BadRow(row=row, reason=reason, detail=detail, payload=row_as_json(batch, row))
            for row, (reason, detail) in sorted(found.items())
        ), columns


def row_as_json(batch: pa.RecordBatch, row: int) -> bytes:
    """One row as JSON by column name; for bad rows only."""
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=_json_default).encode()


def _json_default(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _check_label(found: dict[int, tuple[BadReason, str]], array: pa.Array, name: str) -> None:
    if pa.types.is_null(array.type):
        _note(found, np.ones(len(array), np.bool_), BadReason.LABEL_MISSING, name, array)
        return
    values = convert.raw_values(array)
    wrong = (values != 0) & (values != 1)
    nulls = convert.null_mask(array)
    if nulls is not None:
        _note(found, nulls, BadReason.LABEL_MISSING, name, array)
        wrong &= ~nulls
    _note(found, wrong, BadReason.LABEL, name, array)


def _out_of_range(array: pa.Array, declared: ValueType) -> Bools:
    """Per row: some value of the row, which its Arrow type allows, does not fit the declared type."""
    values, offsets = array, None
    if pa.types.is_list(array.type):
        offsets = convert.list_offsets(array)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    raw = convert.raw_values(values)
    if declared.dtype.is_integer:
        wrong = raw > np.uint64(2**63 - 1)
    else:
        wrong = np.isfinite(raw) & (np.abs(raw) > _FLOAT32_MAX)
    nulls = convert.null_mask(values)
    if nulls is not None:
        wrong &= ~nulls
    if offsets is None or not wrong.any():
        return wrong if offsets is None else np.zeros(len(array), np.bool_)
    rows = np.zeros(len(array), np.bool_)
    rows[np.searchsorted(offsets - offsets[0], np.flatnonzero(wrong), side="right") - 1] = True
    if array.null_count:
        rows &= ~convert.null_mask(array)  # type: ignore[operator]  # there are nulls
    return rows


def _note(found: dict[int, tuple[BadReason, str]], wrong: Bools, reason: BadReason, name: str, array: pa.Array) -> None:
    for row in np.flatnonzero(wrong).tolist():
        found.setdefault(row, (reason, f"column {name} is {array[row].as_py()!r}"))


def _needs_check(declared: Declared, name: str, arrow: pa.DataType) -> bool:
    element, _ = convert.element_type(arrow)
    narrowed = pa.types.is_float64(element) and declared.columns[name].dtype is Dtype.FLOAT32
    return name == declared.label or convert.is_text(element) or pa.types.is_uint64(element) or narrowed


def _column_problems(declared: Declared, schema: pa.Schema) -> Sequence[str]:
    problems = []
    for name, value_type in declared.columns.items():
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            there = ", ".join(schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
            problems.append(
                f"column {name} ({value_type}) is there {count} times"
                if count
                else f"column {name} ({value_type}) is missing; hint: columns go by name, there are {there}"
            )
            continue
        arrow = schema.field(name).type
        element, is_list = convert.element_type(arrow)
        if name in declared.hex_columns and convert.is_text(element) and not is_list:
            if value_type.dtype is not Dtype.INT64:
                problems.append(f"column {name} is hexadecimal but declared {value_type}; hint: declare int64")
            continue
        hint = convert.refusal(arrow, value_type)
        if hint is not None:
            problems.append(f"column {name} is {arrow} but the job declares {value_type}; hint: {hint}")
    return problems


def _event_time_problems(declared: Declared, schema: pa.Schema) -> Sequence[str]:
    name = declared.event_time.column
    if name is None:
        return ()
    if len(schema.get_all_field_indices(name)) != 1:
        return (f"event time column {name} is missing; hint: leave eventTime.column out if events carry no time",)
    element, is_list = convert.element_type(schema.field(name).type)
    number = pa.types.is_integer(element) or pa.types.is_floating(element) or pa.types.is_null(element)
    if is_list or not (number or pa.types.is_timestamp(element)):
        return (f"event time column {name} is {schema.field(name).type}; hint: use a number or a timestamp",)
    return ()


def _event_times_s(times: pa.Array | None, event_time: EventTime, fallback_s: float, num_rows: int) -> Floats:
    if times is None:
        shared: Floats = torch.tensor(fallback_s, dtype=torch.float64).expand(num_rows).numpy()
        return shared
    if pa.types.is_null(times.type):
        return np.full(num_rows, np.nan)
    unit = event_time.unit
    if pa.types.is_timestamp(times.type):
        unit = times.type.unit
        times = times.view(pa.int64())
    seconds: Floats = convert.raw_values(times) / np.float64(UNITS_PER_SECOND[unit])
    nulls = convert.null_mask(times)
    if nulls is not None:
        seconds[nulls] = np.nan
    return seconds
