"""The event stream that every sink writes: rows with time, some of them bad on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from rap_trainer.produce.bad_records import damage
from rap_trainer.produce.options import Produce
from rap_trainer.produce.replay import replayed
from rap_trainer.produce.synthetic import blocks


def events(options: Produce, *, now_s: Callable[[], float] = time.time) -> Iterator[pa.RecordBatch]:
    """Record batches of a few thousand events, `options.rows` in all.

    With a rate, event times follow it from the start time on; without one, the clock's time of each
    batch counts. `now_s` gives seconds since the epoch. The consumer keeps the rate by waiting.
    """
    start_s = now_s() if options.start_time_s is None else options.start_time_s
    row = 0
    for batch in _rows(options):
        if options.rows is not None:
            batch = batch.slice(0, options.rows - row)  # the last one is cut
        if batch.num_rows == 0:
            return
        numbers = np.arange(row, row + batch.num_rows)
        if options.rate is not None:
            times_s = start_s + numbers / options.rate
        else:
            times_s = np.full(len(numbers), start_s if options.start_time_s is not None else now_s())
        extra = {"ts": pa.array(times_s)}
        if options.row_numbers:
            extra["row"] = pa.array(numbers)
        whole = pa.record_batch([*batch.columns, *extra.values()], names=[*batch.schema.names, *extra])
        yield damage(whole, options, first_row=row) if options.bad_ratio else whole
        row += batch.num_rows
        if row == options.rows:
            return


def _rows(options: Produce) -> Iterator[pa.RecordBatch]:
    if options.replay is None:
        return blocks(options)
    return replayed(options.replay, hex_categories=options.hex_categories, repeat=options.rows is not None)
