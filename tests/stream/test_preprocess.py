"""`rap preprocess` gives the very features that training sees, in every format, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.pod import ExitCode
from rap_trainer import preprocess as module
from rap_trainer.feature_table import TableWriter, feature_table, open_table
from rap_trainer.preprocess import preprocess, transform
from rap_trainer.produce import Produce, events
from rap_trainer.program import Program
from rap_trainer.stream import parquet_file
from stream.file_jobs import ranks, step

FEATURES: list[dict[str, Any]] = [
    {"columns": ["int_{0..12}"], "ops": [{"fillNull": {"value": 0}}, {"log1p": {"min": 0}}]},
    {
        "columns": ["cat_{0..25}"],
        "ops": [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 3}}, {"sample": {"rate": 0.5, "salt": 1}}],
        "table": {"rows": 1000, "dim": 8},
    },
    {
        "name": "bucket",
        "columns": ["int_3"],
        "ops": [{"bucketize": {"borders": [0.5, 1.5]}}],
        "table": {"rows": 3, "dim": 8},
    },
    {
        "name": "shape",
        "columns": ["int_1"],
        "ops": [{"fillNull": {"value": 0}}, {"onehot": {"low": 0, "high": 8, "classes": 3}}],
    },
]


def job(directory: Path, **files: Any) -> RAPJob:
    return RAPJob.model_validate(
        {
            "apiVersion": "rap.dev/v1alpha1",
            "kind": "RAPJob",
            "metadata": {"name": "clicks"},
            "spec": {
                "source": {"files": {"path": str(directory), "errorBudget": {"ratio": 0.5}, **files}},
                "columns": {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "list<int64>"},
                "label": "label",
                "features": FEATURES,
                "model": {"dlrm": {"bottom": [8], "top": [1]}},
                "trainer": {"batchSizePerGpu": 700},
                "checkpoint": {"path": str(directory / "unused")},
            },
        }
    )


def graph_of(job: RAPJob) -> FeatureGraph:
    graph, problems = compile_features(job.spec)
    assert graph is not None, problems
    return graph


def clicks(path: Path, *, rows: int = 3000, **options: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_batches(list(events(Produce(rows=rows, bad_ratio=0.05, **options)))), path)
    return path


def as_trained(job: RAPJob) -> pa.Table:
    """Every batch of training, through the program."""
    graph = graph_of(job)
    program = Program(graph)
    tables = []
    with ranks(job.spec, 2) as sources:
        while (batches := step(sources)) is not None:
            tables += [feature_table(program.run(batch), graph, has_label=True) for batch in batches if batch.num_rows]
    return pa.concat_tables(tables).combine_chunks()


@pytest.mark.parametrize("mean_length", [None, 3.0], ids=["single ids", "lists"])
def test_the_output_is_bit_equal_to_what_training_sees(tmp_path: Path, mean_length: float | None) -> None:
    path = clicks(tmp_path / "events" / "a.parquet", mean_length=mean_length)
    clicks_job = job(path.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCH_ROWS", 997)  # other batches than training's
        summary = transform(clicks_job, path, tmp_path / "out.parquet")
    written = pq.read_table(tmp_path / "out.parquet").combine_chunks()
    assert written.equals(as_trained(clicks_job))
    assert summary.rows == written.num_rows == 3000 - sum(summary.bad_rows.values())
    assert sum(summary.bad_rows.values()) > 50


def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    opened = open_table

    @contextmanager
    def watched(path: Path, suffix: str, schema: pa.Schema) -> Iterator[TableWriter]:
        with opened(path, suffix, schema) as writer:
            yield _Watching(writer, held)

    monkeypatch.setattr(module, "open_table", watched)
    monkeypatch.setattr(module, "BATCH_ROWS", 1000)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 1 << 19)  # pieces of about 1,600 rows
    peaks = {}
    for rows in (8_000, 32_000):
        path = clicks(tmp_path / "events" / f"{rows}.parquet", rows=rows)
        pq.write_table(pq.read_table(path), path, row_group_size=2000)
        before = pa.total_allocated_bytes()
        held.clear()
        transform(job(path.parent), path, tmp_path / "out.parquet")
        peaks[rows] = max(held) - before
    assert len(held) > 20
    assert peaks[32_000] < 1.5 * peaks[8_000]


class _Watching:
    """A writer that notes how much memory Arrow holds at each write."""

    def __init__(self, writer: TableWriter, held: list[int]) -> None:
        self._writer, self._held = writer, held

    def write(self, table: pa.Table, /) -> None:
        self._held.append(pa.total_allocated_bytes())
        self._writer.write(table)


def read_text(path: Path, delimiter: str, schema: pa.Schema) -> dict[str, list[Any]]:
    table = pacsv.read_csv(
        path,
        parse_options=pacsv.ParseOptions(delimiter=delimiter),
        convert_options=pacsv.ConvertOptions(
            column_types={f.name: pa.string() if pa.types.is_nested(f.type) else f.type for f in schema},
            strings_can_be_null=False,
        ),
    )
    found: dict[str, list[Any]] = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        if pa.types.is_nested(schema.field(name).type):
            parse = int if pa.types.is_integer(schema.field(name).type.value_type) else np.float32
            values = [[parse(word) for word in text.split()] for text in values]
        found[name] = values
    return found


@pytest.mark.parametrize("suffix", [".arrow", ".ipc", ".csv", ".tsv"])
def test_every_output_format_holds_the_same_values(tmp_path: Path, suffix: str) -> None:
    path = clicks(tmp_path / "events" / "a.parquet", rows=300, mean_length=2.0)
    clicks_job = job(path.parent)
    transform(clicks_job, path, tmp_path / "out.parquet")
    transform(clicks_job, path, tmp_path / f"out{suffix}")
    expected = pq.read_table(tmp_path / "out.parquet")
    if suffix in (".arrow", ".ipc"):
        with pa.ipc.open_file(str(tmp_path / f"out{suffix}")) as reader:
            assert reader.read_all().equals(expected)
    else:
        found = read_text(tmp_path / f"out{suffix}", "," if suffix == ".csv" else "\t", expected.schema)
        assert found == expected.to_pydict()


@pytest.mark.parametrize("suffix", [".arrow", ".csv", ".tsv"])
def test_every_input_format_gives_the_same_features(tmp_path: Path, suffix: str) -> None:
    path = clicks(tmp_path / "events" / "rows.parquet", hex_categories=False)
    table = pq.read_table(path).drop_columns(["cat_25"]).append_column("cat_25", pa.array(range(3000)))
    pq.write_table(table, path)
    other = path.with_name(f"rows{suffix}")
    if suffix == ".arrow":
        with pa.ipc.new_stream(str(other), table.schema) as writer:
            writer.write_table(table)
    else:
        pacsv.write_csv(table, other, pacsv.WriteOptions(delimiter="," if suffix == ".csv" else "\t"))
    features = [feature for feature in FEATURES if "sample" not in str(feature)]  # a row's identity names its file
    features.append({**FEATURES[1], "ops": FEATURES[1]["ops"][:2]})
    spec = job(path.parent).model_dump(by_alias=True)
    spec["spec"]["features"] = features
    clicks_job = RAPJob.model_validate(spec)
    transform(clicks_job, path, tmp_path / "a.parquet")
    transform(clicks_job, other, tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


def test_rows_without_a_label_as_serving_has_them_give_the_same_features(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.Table.from_batches(list(events(Produce(rows=500))))
    pq.write_table(table, path)
    transform(job(tmp_path), path, tmp_path / "with.parquet")
    pq.write_table(table.drop_columns(["label"]), path)
    summary = transform(job(tmp_path), path, tmp_path / "without.parquet")
    assert not summary.has_label
    expected = pq.read_table(tmp_path / "with.parquet").drop_columns(["label"])
    assert pq.read_table(tmp_path / "without.parquet").equals(expected)


def retyped(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "int_0", pa.array([[1]] * table.num_rows)), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "output", "code", "said"),
    [
        (retyped, "out.parquet", ExitCode.INVALID, ["int_0 is list<", "declares float32", "hint:"]),
        (cut, "out.parquet", ExitCode.INVALID, ["footer is missing", "hint:"]),
        (lambda path: path.write_bytes(b""), "out.parquet", ExitCode.INVALID, ["0 bytes"]),
        (lambda path: path.unlink(), "out.parquet", 1, ["No such file"]),
        (lambda path: None, "out.xls", ExitCode.INVALID, ["unknown output format .xls"]),
        (lambda path: None, "missing/out.csv", 1, ["No such file"]),
        (lambda path: None, "events/a.parquet", ExitCode.INVALID, ["is the input itself"]),
        (lambda path: clicks(path), "out.parquet", ExitCode.DATA_BUDGET, ["rows are bad", "errorBudget"]),
    ],
    ids=["re-typed", "truncated", "empty", "missing", "unknown format", "no directory", "same file", "budget"],
)
def test_what_cannot_be_done_is_said_and_leaves_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Any, output: str, code: int, said: Sequence[str]
) -> None:
    path = tmp_path / "events" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_batches(list(events(Produce(rows=1000)))), path)
    damage(path)
    before = path.read_bytes() if path.exists() else b""
    budget = 0.01 if code == ExitCode.DATA_BUDGET else 0.5
    assert (
        preprocess(job(path.parent, errorBudget={"ratio": budget, "windowRows": 1000}), path, tmp_path / output) == code
    )
    message = capsys.readouterr().err
    assert message.startswith("rap preprocess: ")
    for words in said:
        assert words in message
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events"]
    assert (path.read_bytes() if path.exists() else b"") == before


@pytest.mark.skipif(
    not os.environ.get("RAP_SHARED_DATA") and not Path("../shared/data").is_dir(), reason="no real rows"
)
def test_real_rows_of_criteo_terabyte_pass_the_chains_of_plan_1(tmp_path: Path) -> None:
    path = Path(os.environ.get("RAP_SHARED_DATA", "../shared/data")) / "criteo_terabyte_24576.parquet"
    plan = job(path.parent).model_dump(by_alias=True)
    plan["spec"]["features"] = [
        {"columns": ["int_{0..12}"], "ops": [{"fillNull": {"value": 0}}, {"logit": {"eps": 1e-5}}]},
        {
            "columns": ["cat_{0..25}"],
            "ops": [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 0}}, {"firstx": {"count": 1}}],
            "table": {"rows": 1000, "dim": 8},
        },
    ]
    summary = transform(RAPJob.model_validate(plan), path, tmp_path / "out.parquet")
    assert (summary.rows, summary.bad_rows) == (24_576, {})
    table = pq.read_table(tmp_path / "out.parquet")
    rows = pq.read_table(path)
    assert table.column("label").to_pylist() == rows.column("label").to_pylist()
    clamped = (
        rows.column("int_0").cast(pa.float32()).fill_null(0).to_numpy().clip(1e-5, np.float32(1) - np.float32(1e-5))
    )
    np.testing.assert_allclose(table.column("int_0").to_numpy(), np.log(clamped / (1 - clamped)), rtol=1e-4)
    assert all(len(ids) == 1 for ids in table.column("cat_7").to_pylist())
