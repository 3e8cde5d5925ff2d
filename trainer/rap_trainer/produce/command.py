"""`rap produce`: its options, and how it reports."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rap_contract.pod import ExitCode

from rap_trainer.produce.directory import Directory, with_text_defaults, write_directory
from rap_trainer.produce.options import Produce

REPORT_INTERVAL_S = 5.0
_IO_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `rap produce`."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="directory to write files into")
    add("--format", choices=("parquet", "arrow", "csv", "tsv"), default="parquet")
    add("--rows", type=int, metavar="N", help="rows to produce; default: no end, or one pass of --replay")
    add("--rate", type=float, metavar="R", help="rows a second; default: as fast as possible")
    add("--rows-per-file", type=int, default=10_000, metavar="N")
    add("--seed", type=int, default=0, help="equal seeds give equal rows")
    add("--drift", type=float, default=0.0, help="quarter turns of the planted truth in a million rows")
    add("--mean-length", type=float, metavar="L", help="categories as lists of this mean length; default: one id")
    add("--length-drift", type=float, default=0.0, help="growth of list lengths, as exp(x) in a million rows")
    add("--bad-ratio", type=float, default=0.0, help="share of bad records, 0..1")
    add("--replay", type=Path, metavar="FILE", help="a Criteo file (Parquet, CSV or TSV) instead of synthetic rows")
    add("--row-numbers", action="store_true", help="add the column `row`")
    add("--no-header", action="store_true", help="text files without column names")
    add("--no-end", action="store_true", help="leave out the marker _END, so that more can follow")


def run(arguments: argparse.Namespace) -> int:
    """Produces until done or interrupted; returns an exit code."""
    try:
        directory = Directory(
            path=arguments.out,
            format=arguments.format,
            rows_per_file=arguments.rows_per_file,
            header=not arguments.no_header,
            end_marker=not arguments.no_end,
        )
        options = Produce(
            rows=arguments.rows,
            rate=arguments.rate,
            seed=arguments.seed,
            drift=arguments.drift,
            mean_length=arguments.mean_length,
            length_drift=arguments.length_drift,
            bad_ratio=arguments.bad_ratio,
            row_numbers=arguments.row_numbers,
            replay=arguments.replay,
        )
        total = write_directory(with_text_defaults(options, directory), directory, written=_Report().rows)
    except ValueError as error:
        print(f"rap produce: {error}", file=sys.stderr)
        return ExitCode.INVALID
    except OSError as error:
        print(f"rap produce: {error.filename or arguments.out}: {error.strerror or error}", file=sys.stderr)
        return _IO_FAILED
    except KeyboardInterrupt:
        print(f"rap produce: stopped; {arguments.out} has no _END, so it can go on", file=sys.stderr)
        return ExitCode.TERMINATED
    print(f"{total:,} rows in {arguments.out}")
    return ExitCode.DONE


class _Report:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._begin_s = self._last_s = time.monotonic()

    def rows(self, total: int) -> None:
        """Says how far it is."""
        now_s = time.monotonic()
        if now_s - self._last_s >= REPORT_INTERVAL_S:
            self._last_s = now_s
            print(f"{total:,} rows, {total / (now_s - self._begin_s):,.0f} rows/s", flush=True)
