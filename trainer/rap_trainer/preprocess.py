"""`rap preprocess`: a job's chains over files, for serving and debugging. Bit-equal to what training sees.

The same decoding and the same program as in training, in pieces of bounded size; the output appears
whole or not at all. Rows that training would put aside are left out and counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import torch
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.pod import ExitCode
from rap_contract.problem import InvalidDocument
from rap_contract.source import Csv

from rap_trainer.batch import Column, ModelBatch
from rap_trainer.feature_table import feature_schema, feature_table, open_table
from rap_trainer.program import Program
from rap_trainer.program.columns import TORCH_DTYPES
from rap_trainer.program.host_memory import keep_freed_memory
from rap_trainer.stream.bad_rows import BadRows
from rap_trainer.stream.catalogue import Kind, Record
from rap_trainer.stream.decode import Declared, Decoder, declared
from rap_trainer.stream.file_format import EventFile, FileProblem
from rap_trainer.stream.file_reader import decode_piece, unit_id
from rap_trainer.stream.files import letter_of
from rap_trainer.stream.open_file import open_file, wanted_columns
from rap_trainer.stream.rows import Span, batch_of
from rap_trainer.stream.source import DataBudgetExceeded, SourceError

BATCH_ROWS = 32_768
"""Rows the chains run on at once: a row group of a Parquet output."""
_IO_FAILED = 1
_INPUT_FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".csv": "csv", ".tsv": "tsv"}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of a file."""

    rows: int
    """Written."""
    bad_rows: dict[str, int]
    """Left out, by reason."""
    has_label: bool


def preprocess(job: RAPJob, source: Path, output: Path) -> int:
    """Runs the job's chains over `source` into `output`; says what it did; returns an exit code."""
    return told("rap preprocess", job, source, output, lambda: transform(job, source, output))


def told(command: str, job: RAPJob, source: Path, output: Path, act: Callable[[], Summary]) -> int:
    """Runs `act` and says what became of it, on standard output or error; returns the exit code."""
    keep_freed_memory()
    try:
        summary = act()
    except DataBudgetExceeded as error:
        print(f"{command}: {error}", file=sys.stderr)
        return ExitCode.DATA_BUDGET
    except (FileProblem, SourceError, ValueError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return ExitCode.INVALID
    except OSError as error:
        print(f"{command}: {error.filename or output}: {error.strerror or error}", file=sys.stderr)
        return _IO_FAILED
    left_out = ", ".join(f"{reason}: {count}" for reason, count in sorted(summary.bad_rows.items()))
    print(f"{summary.rows:,} rows in {output}" + (f"; left out as bad: {left_out}" if left_out else ""))
    if not summary.has_label:
        print(f"{source} has no column {job.spec.label}: the output has none either")
    return ExitCode.DONE


def transform(job: RAPJob, source: Path, output: Path) -> Summary:
    """Writes one row of features for each good row of `source`, in order.

    Columns: dense features float32 (fixed-size lists where wider than 1), sparse ones list<int64>, their
    weights list<float32> as `<feature>_weights`, and the label float32. A file without the label column, as
    serving has it, gives an output without. Raises FileProblem, SchemaMismatch, DataBudgetExceeded, OSError.
    """
    graph, problems = compile_features(job.spec)
    if graph is None:
        raise InvalidDocument(problems)
    return rewrite(
        job,
        Program(graph),
        source,
        output,
        schema=lambda has_label: feature_schema(graph, has_label=has_label),
        table=lambda batch, has_label: feature_table(batch, graph, has_label=has_label),
    )


def rewrite(
    job: RAPJob,
    program: Program,
    source: Path,
    output: Path,
    *,
    schema: Callable[[bool], pa.Schema],
    table: Callable[[ModelBatch, bool], pa.Table],
) -> Summary:
    """Writes the `table` of each batch of `source`'s good rows into `output`, whole or not at all.

    Both callables are told whether the file has labels. Raises FileProblem, SchemaMismatch, DataBudgetExceeded,
    ValueError, OSError.
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise ValueError(f"{output} is the input itself; hint: give another name")
    kind = "source.files" if job.spec.source.files is not None else "source.kafka"
    bad = BadRows(job.spec.source.error_budget, None, source=kind)
    rows = 0
    with closing(_open(job, source)) as file:
        has_label = job.spec.label in file.schema.names
        expected = declared(job.spec) if has_label else _without_label(declared(job.spec))
        aside = output.with_name(f".{output.name}.{os.getpid()}.tmp")
        try:
            with open_table(aside, output.suffix, schema(has_label)) as opened:
                for batch in _batches(file, expected, program, bad, source):
                    rows += batch.labels_B.numel()
                    opened.write(table(batch, has_label))
            aside.replace(output)
        finally:
            aside.unlink(missing_ok=True)
    return Summary(rows=rows, bad_rows=dict(bad.counts), has_label=has_label)


def _batches(file: EventFile, expected: Declared, program: Program, bad: BadRows, source: Path) -> Iterator[ModelBatch]:
    decoder = Decoder(expected, file.schema, str(source))
    record = Record(kind=Kind.FILE, name=source.name, modified_s=source.stat().st_mtime)
    label = program.graph.label
    dtype = TORCH_DTYPES[program.graph.columns[label].dtype]
    for piece in file.pieces(wanted_columns(expected), 0):
        chunk = decode_piece(decoder, piece, record=record, unit_base=unit_id(source.name))
        bad.seen(rows=chunk.num_rows, bad_rows=len(chunk.bad))
        bad.keep([letter_of(source.name, row) for row in chunk.bad])
        bad.check()
        if chunk.rows is None:
            continue
        for start in range(0, chunk.num_good, BATCH_ROWS):
            stop = min(start + BATCH_ROWS, chunk.num_good)
            raw = batch_of([Span(chunk.rows, start, stop)], stop - start)
            if label not in raw.columns:
                raw = replace(
                    raw, columns={**raw.columns, label: Column(values_N=torch.zeros(stop - start, dtype=dtype))}
                )
            yield program.run(raw)
    bad.check(at_end=True)


def _open(job: RAPJob, source: Path) -> EventFile:
    suffixes = [suffix for suffix in source.suffixes if suffix != ".gz"]
    files, kafka = job.spec.source.files, job.spec.source.kafka
    format_name = _INPUT_FORMATS.get(suffixes[-1]) if suffixes else None
    if format_name is None:
        if files is None:
            raise ValueError(f"{source}: unknown format; hint: name it *{', *'.join(_INPUT_FORMATS)}")
        format_name = files.format
    csv = files.csv if files is not None else kafka.csv if kafka is not None else Csv()
    if not source.is_file():
        source.stat()  # says what is wrong with it
        raise ValueError(f"{source} is not a file; hint: preprocess its files one by one")
    return open_file(source, format_name, csv, declared(job.spec))


def _without_label(expected: Declared) -> Declared:
    columns = {name: value for name, value in expected.columns.items() if name != expected.label}
    return replace(expected, columns=columns, label=None)
