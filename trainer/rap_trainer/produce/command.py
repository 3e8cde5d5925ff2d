"""`rap produce`: its options, and how it reports."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rap_contract.pod import ExitCode

from rap_trainer.produce.directory import Directory, with_text_defaults, write_directory
from rap_trainer.produce.options import Produce

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "TLS")
REPORT_INTERVAL_S = 5.0
_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `rap produce`."""
    add = parser.add_argument
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, metavar="DIR", help="directory to write files into")
    place.add_argument("--kafka", metavar="HOST:PORT[,...]", help="brokers to write messages to")
    add("--topic", metavar="T", help="topic that the messages go to")
    add("--rows-per-message", type=int, default=1000, metavar="N")
    add("--secrets", type=Path, metavar="DIR", help="directory with username, password, token, ca.crt as files")
    add("--mechanism", choices=MECHANISMS, help="how to log in with --secrets")
    add("--format", choices=("parquet", "arrow", "csv", "tsv", "json"), help="parquet for files, arrow for messages")
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
    place = arguments.out or f"topic {arguments.topic}"
    try:
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
        total = _into_topic(arguments, options) if arguments.kafka else _into_directory(arguments, options)
    except ValueError as error:
        print(f"rap produce: {error}", file=sys.stderr)
        return ExitCode.INVALID
    except OSError as error:
        print(f"rap produce: {error.filename or place}: {error.strerror or error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        hint = f"; {place} has no _END, so it can go on" if arguments.out else ""
        print(f"rap produce: stopped{hint}", file=sys.stderr)
        return ExitCode.TERMINATED
    except RuntimeError as error:  # NotConfirmed and SourceError among them
        print(f"rap produce: {place}: {error}", file=sys.stderr)
        return _FAILED
    print(f"{total:,} rows in {place}")
    return ExitCode.DONE


def _into_directory(arguments: argparse.Namespace, options: Produce) -> int:
    if arguments.format == "json":
        raise ValueError("JSON lines are for --kafka; files are parquet, arrow, csv or tsv")
    directory = Directory(
        path=arguments.out,
        format=arguments.format or "parquet",
        rows_per_file=arguments.rows_per_file,
        header=not arguments.no_header,
        end_marker=not arguments.no_end,
    )
    return write_directory(with_text_defaults(options, directory), directory, written=_Report().rows)


def _into_topic(arguments: argparse.Namespace, options: Produce) -> int:
    from rap_trainer.produce.kafka_topic import Topic, write_topic  # only who writes to Kafka needs its client
    from rap_trainer.stream.kafka.settings import Login

    if not arguments.topic:
        raise ValueError("--kafka needs --topic")
    if arguments.format == "parquet":
        raise ValueError("messages are arrow, json, csv or tsv; parquet is for --out")
    if (arguments.secrets is None) != (arguments.mechanism is None):
        raise ValueError("--secrets and --mechanism go together")
    login = None
    if arguments.mechanism is not None:
        login = Login(mechanism=arguments.mechanism, tls=True, directory=arguments.secrets)
    topic = Topic(
        bootstrap_servers=tuple(arguments.kafka.split(",")),
        topic=arguments.topic,
        format=arguments.format or "arrow",
        rows_per_message=arguments.rows_per_message,
        header=not arguments.no_header,
        login=login,
    )
    return write_topic(options, topic, written=_Report().rows)


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
