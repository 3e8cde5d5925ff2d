"""local_hour: floor((t + offset) / 3600) mod 24, computed within a day so that no t overflows."""

from __future__ import annotations

from dataclasses import replace

import torch
from rap_contract.ops.local_hour import LocalHour

from rap_trainer.ops.nulls import drop_rows
from rap_trainer.ops.segments import places
from rap_trainer.ops.value import Context, Dense, Jagged, References, Value, elements

DAY_S, HOUR_S = 86_400, 3_600


def apply(op: LocalHour, value: Value, references: References, context: Context) -> Value:
    """Hours 0..23, int32. Null where the time or its row's offset is."""
    del context
    of_day_N = elements(value).remainder(DAY_S)
    if op.offset_column is None:
        return value.with_values(_hours(of_day_N + (op.offset or 0) % DAY_S))
    offset = references[op.offset_column]
    assert isinstance(offset, Dense)
    offset_B = offset.values_B.remainder(DAY_S)
    if isinstance(value, Dense):
        nulls = [each for each in (value.nulls_B, offset.nulls_B) if each is not None]
        nulls_B = nulls[0] | nulls[1] if len(nulls) == 2 else nulls[0] if nulls else None
        return Dense(values_B=_hours(of_day_N + offset_B), nulls_B=nulls_B)
    rows_N, _ = places(value.lengths_B, of_day_N.numel())
    hours = value.with_values(_hours(of_day_N + offset_B[rows_N]))
    return hours if offset.nulls_B is None else _nulled(hours, offset.nulls_B)


def _hours(seconds_N: torch.Tensor) -> torch.Tensor:
    return seconds_N.remainder(DAY_S).div(HOUR_S, rounding_mode="floor").to(torch.int32)


def _nulled(value: Jagged, nulls_B: torch.Tensor) -> Jagged:
    if value.nulls_B is not None:
        nulls_B = nulls_B | value.nulls_B
    return replace(drop_rows(value, nulls_B), nulls_B=nulls_B)
