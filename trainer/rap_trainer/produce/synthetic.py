"""Synthetic events in blocks: each block is made from the seed and its number alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rap_trainer.produce.options import MAX_LENGTH, NUM_CATS, NUM_INTS, Produce
from rap_trainer.produce.truth import BIAS, CARDINALITIES, PAIRS, Floats, Int64s, Truth

BLOCK_ROWS = 8192
_INT_LOG_MEANS = np.linspace(0.5, 6.0, NUM_INTS)
_INT_LOG_STDS = np.linspace(0.8, 2.0, NUM_INTS)
_INT_NULLS = np.array([0.45, 0.0, 0.2, 0.2, 0.02, 0.2, 0.04, 0.0, 0.04, 0.45, 0.04, 0.76, 0.2])
"""Null shares near those of Criteo Kaggle's numbers."""
_CAT_NULLS = np.array([0.0] * 18 + [0.44, 0.44, 0.0, 0.76, 0.0, 0.0, 0.44, 0.44])
_ID_FACTOR = 2_654_435_761  # odd: ids are distinct in 32 bits (Knuth's multiplicative hash)
_LENGTH_LOG_STD = 0.7  # of list lengths, log-normal (SEMANTICS: plan 4)
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True)
class _Lists:
    """Ids of one column: jagged, or one a row when `lengths` is None."""

    ranks: Int64s
    lengths: npt.NDArray[np.int32] | None

    def per_row(self, values: Floats) -> Floats:
        """Sum over each list, divided by the root of its length: lists of any length count alike."""
        if self.lengths is None:
            return values
        ends = np.cumsum(self.lengths)
        sums = np.concatenate([[0.0], np.cumsum(values)])
        totals = sums[ends] - sums[ends - self.lengths]
        return np.asarray(totals / np.sqrt(np.maximum(self.lengths, 1)))


def blocks(options: Produce) -> Iterator[pa.RecordBatch]:
    """Blocks of BLOCK_ROWS events without time, for ever."""
    truth = Truth(options.seed)
    number = 0
    while True:
        yield _block(options, truth, number)
        number += 1


def _block(options: Produce, truth: Truth, number: int) -> pa.RecordBatch:
    rng = np.random.default_rng([options.seed, number])
    millions = number * BLOCK_ROWS / 1e6
    turn = options.drift * millions
    scaled = rng.standard_normal((BLOCK_ROWS, NUM_INTS))
    numbers = np.floor(np.expm1(np.minimum(_INT_LOG_MEANS + _INT_LOG_STDS * scaled, 20.0))).astype(np.int32)
    int_nulls = rng.random((BLOCK_ROWS, NUM_INTS)) < _INT_NULLS
    scaled[int_nulls] = 0.0
    logit = BIAS + truth.int_part(scaled, int_nulls, turn)
    mean_length = None
    if options.mean_length is not None:
        mean_length = float(np.clip(options.mean_length * np.exp(options.length_drift * millions), 1, MAX_LENGTH))
    lists = [_lists(rng, column, mean_length) for column in range(NUM_CATS)]
    cat_nulls = rng.random((BLOCK_ROWS, NUM_CATS)) < _CAT_NULLS
    for column, ids in enumerate(lists):
        logit += np.where(cat_nulls[:, column], 0.0, ids.per_row(truth.cat_part(column, ids.ranks, turn)))
    for left, right in PAIRS:
        sides = [lists[c].per_row(truth.pair_part(c, lists[c].ranks, turn)) for c in (left, right)]
        logit += sides[0] * sides[1]
    label = rng.random(BLOCK_ROWS) < 1 / (1 + np.exp(-logit))
    columns = {"label": pa.array(label.astype(np.int32))}
    for i in range(NUM_INTS):
        columns[f"int_{i}"] = pa.array(np.ascontiguousarray(numbers[:, i]), mask=np.ascontiguousarray(int_nulls[:, i]))
    for i, ids in enumerate(lists):
        columns[f"cat_{i}"] = _id_array(ids, np.ascontiguousarray(cat_nulls[:, i]), i, as_hex=options.hex_categories)
    return pa.record_batch(columns)


def _lists(rng: np.random.Generator, column: int, mean_length: float | None) -> _Lists:
    lengths = None
    num_ids = BLOCK_ROWS
    if mean_length is not None:
        log_mean = np.log(mean_length) - _LENGTH_LOG_STD**2 / 2
        drawn = np.exp(log_mean + _LENGTH_LOG_STD * rng.standard_normal(BLOCK_ROWS))
        lengths = np.clip(np.rint(drawn), 0, MAX_LENGTH).astype(np.int32)
        num_ids = int(lengths.sum())
    # P(rank k) ~ 1/k: the power law of ids
    ranks = np.floor((CARDINALITIES[column] + 1.0) ** rng.random(num_ids)).astype(np.int64) - 1
    return _Lists(np.minimum(ranks, CARDINALITIES[column] - 1), lengths)


def _id_array(ids: _Lists, nulls: npt.NDArray[np.bool_], column: int, *, as_hex: bool) -> pa.Array:
    raw = (ids.ranks * _ID_FACTOR + column * 97) % 2**32
    if as_hex:
        return hex_array(raw, nulls)
    if ids.lengths is None:
        return pa.array(raw, mask=nulls)
    offsets = np.zeros(len(ids.lengths) + 1, np.int32)
    np.cumsum(ids.lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(raw), mask=pa.array(nulls))


def hex_array(ids: Int64s, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Ids below 2^32 as strings of 8 hexadecimal digits."""
    shifts = np.arange(28, -1, -4)
    digits = _HEX_DIGITS[(ids[:, None] >> shifts) & 15]
    kept = np.ascontiguousarray(digits[~nulls])
    offsets = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(np.where(nulls, 0, 8), out=offsets[1:])
    validity = np.packbits(~nulls, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(kept)]
    return pa.Array.from_buffers(pa.string(), len(ids), buffers)
