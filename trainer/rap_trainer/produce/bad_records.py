"""Bad records on purpose: what a typed column can hold, and what only text can."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rap_trainer.produce.options import NUM_INTS, Produce

_HUGE_ID = 2**63 + 5
_HUGE_COLUMN = "cat_25"
_TEXT_SHARE = 0.5  # of the bad records of a text file: malformed lines, the rest bad values


def damage(batch: pa.RecordBatch, options: Produce, *, first_row: int) -> pa.RecordBatch:
    """The batch with `bad_ratio` of its rows bad: a label of 2, no label, or an id past 2^63.

    Where ids are integers, `cat_25` becomes uint64 in every batch, so that such ids fit.
    """
    rng = np.random.default_rng([options.seed, 1, first_row])
    bad = np.flatnonzero(rng.random(batch.num_rows) < options.bad_ratio)
    kinds = rng.integers(0, 3, len(bad))
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    with_huge_ids = pa.types.is_int64(columns[_HUGE_COLUMN].type)
    if not with_huge_ids:
        kinds %= 2
    label = columns["label"].to_numpy(zero_copy_only=False).astype(np.int32)
    missing = np.zeros(batch.num_rows, np.bool_)
    label[bad[kinds == 0]] = 2
    missing[bad[kinds == 1]] = True
    columns["label"] = pa.array(label, mask=missing)
    if with_huge_ids:
        ids = columns[_HUGE_COLUMN].fill_null(0).to_numpy().astype(np.uint64)
        nulls = columns[_HUGE_COLUMN].is_null().to_numpy(zero_copy_only=False).copy()
        ids[bad[kinds == 2]] = _HUGE_ID
        nulls[bad[kinds == 2]] = False
        columns[_HUGE_COLUMN] = pa.array(ids, mask=nulls)
    return pa.record_batch(columns)


def damage_text(text: bytes, options: Produce, *, file_number: int, delimiter: bytes) -> bytes:
    """Lines with a share of malformed ones: a word as a number, an id past 2^63, fields lost or added."""
    rng = np.random.default_rng([options.seed, 2, file_number])
    lines = io.BytesIO(text).readlines()
    bad = rng.random(len(lines)) < options.bad_ratio * _TEXT_SHARE
    bad[0] = False  # the header
    for number in np.flatnonzero(bad).tolist():
        lines[number] = _malformed(lines[number].rstrip(b"\n").split(delimiter), rng, delimiter) + b"\n"
    return b"".join(lines)


def _malformed(fields: list[bytes], rng: np.random.Generator, delimiter: bytes) -> bytes:
    kind = int(rng.integers(0, 4))
    if kind == 0:
        fields[1] = b"many"
    elif kind == 1:
        fields[1 + NUM_INTS] = b"f" * 16  # as hexadecimal beyond 2^63
    elif kind == 2:
        fields = fields[: len(fields) // 2]
    else:
        fields.append(b"1")
    return delimiter.join(fields)


def text_share(options: Produce) -> Produce:
    """The options for the rows of a text file: malformed lines make up the rest of its bad records."""
    return replace(options, bad_ratio=options.bad_ratio * (1 - _TEXT_SHARE))
