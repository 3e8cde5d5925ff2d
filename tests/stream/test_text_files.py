"""Delimited text: Criteo's form, with every malformed line put aside and every good one kept."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.stream import csv_file
from rap_trainer.stream.source import SourceError
from stream.file_jobs import flat, job, ranks, step, train

COLUMNS = {"label": "int32", "row": "int64", "cat": "list<int64>"}
HEX: dict[str, Any] = {"csv": {"hexColumns": ["cat"]}}


def read(
    path: Path, text: str, columns: dict[str, str] = COLUMNS, **files: Any
) -> tuple[list[list[Any]], dict[str, int]]:
    """Rows of the columns as lists with None for null, and bad rows by reason."""
    path.write_text(text)
    spec = job(path, columns=columns, batch_rows=1000, format="csv", **{**HEX, **files})
    with ranks(spec) as (source,):
        batches = step([source])
        counts = source.counts()
    if batches is None:
        return [], dict(counts.bad_rows)
    held = []
    for column in batches[0].columns.values():
        nulls = [False] * len(column.values_N) if column.nulls_N is None else column.nulls_N.tolist()
        held.append([None if null else v for v, null in zip(column.values_N.tolist(), nulls, strict=True)])
    return [list(row) for row in zip(*held, strict=True)], dict(counts.bad_rows)


def test_empty_is_missing_and_categories_are_hexadecimal(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "a.csv", "label,row,cat\n1,,ff\n0,2,\n1,3,05db9164\n")
    assert rows == [[1, None, 255], [0, 2, None], [1, 3, 0x05DB9164]]
    assert bad == {}


def test_columns_go_by_header_and_new_ones_are_ignored(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "a.csv", 'cat,note,row,label\nff,"a, b",7,1\n')
    assert rows == [[1, 7, 255]]


def test_without_a_header_column_names_count_by_place(tmp_path: Path) -> None:
    csv = {"header": False, "columnNames": ["label", "row", "cat"], "hexColumns": ["cat"]}
    rows, _ = read(tmp_path / "a.csv", "1,7,ff\r\n0,8,ab", csv=csv)
    assert rows == [[1, 7, 255], [0, 8, 171]]


def test_column_names_replace_those_of_the_header(tmp_path: Path) -> None:
    csv = {"columnNames": ["label", "row", "cat"], "hexColumns": ["cat"]}
    rows, _ = read(tmp_path / "a.csv", "clicked,I1,C1\n1,7,ff\n", csv=csv)
    assert rows == [[1, 7, 255]]


def test_tsv_is_separated_by_tabs_and_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"label\trow\tcat\n1\t7\tff\n"))
    with ranks(job(path, columns=COLUMNS, format="tsv", **HEX)) as sources:
        assert train(sources) == [[[7]]]


def test_each_kind_of_malformed_line_is_bad_and_the_others_survive(tmp_path: Path) -> None:
    lines = [
        "1,0,ff",
        "1,many,ff",  # no number
        "1,2",  # too few fields
        "1,3,ff,ff",  # too many
        "0,9223372036854775808,ff",  # past 2^63
        "0,5,zz",  # not hexadecimal
        "0,6,ffffffffffffffff",  # an id past 2^63
        "2,7,ff",  # no label
        ",8,ff",
        "",  # a row of missing values has no label either
        "yes,10,ff",
        '0,"11,ff',  # a quote that never closes
        "0,1.5,ff",  # a float never becomes an integer
        "1,13,ab",
    ]
    rows, bad = read(tmp_path / "a.csv", "label,row,cat\n" + "\n".join(lines) + "\n")
    assert rows == [[1, 0, 255], [1, 13, 171]]
    assert bad == {"unparseable": 4, "fields": 3, "out_of_range": 2, "label": 1, "label_missing": 2}


@settings(max_examples=30, deadline=None)
@given(
    good=st.lists(st.booleans(), min_size=1, max_size=60),
    block_bytes=st.integers(8, 200),
    taken=st.integers(0, 4),
)
def test_blocks_and_restarts_change_neither_rows_nor_numbers(
    tmp_path_factory: pytest.TempPathFactory, good: list[bool], block_bytes: int, taken: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.csv"
    bad = ["x,{0},ff", "1,{0}", "1,{0},ff,ff", "7,{0},ff"]
    lines = [("1,{0},ff" if fine else bad[row % 4]).format(row) for row, fine in enumerate(good)]
    path.write_text("label,row,cat\n" + "\n".join(lines))
    spec = job(path, columns=COLUMNS, batch_rows=5, format="csv", **HEX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_file, "BLOCK_BYTES", block_bytes)
        with ranks(spec) as sources:
            rows = flat(train(sources, max_steps=taken))
            positions = sources[0].positions() if rows else None
    with ranks(spec, start=positions) as sources:
        rows += flat(train(sources))
    assert [row for one in rows for row in one] == [row for row, fine in enumerate(good) if fine]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"PAR1\0\0\0\0\nPAR1", "not text"),
        (b"label,row\n1,2\n", "column cat (list<int64>) is missing"),
    ],
    ids=["empty", "binary", "missing column"],
)
def test_a_file_that_cannot_be_read_as_text_names_itself_and_why(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with ranks(job(path, columns=COLUMNS, format="csv", **HEX)) as sources, pytest.raises(SourceError) as refused:
        train(sources)
    assert str(path) in str(refused.value)
    assert message in str(refused.value)


def test_a_header_of_another_width_than_column_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b;c\n1;2;3\n")
    spec = job(tmp_path / "a.csv", columns=COLUMNS, format="csv", csv={"columnNames": ["label", "row", "cat"]})
    with ranks(spec) as sources, pytest.raises(SourceError, match=r"header has 1 columns, csv.columnNames 3"):
        train(sources)


@pytest.mark.skipif(
    not os.environ.get("RAP_SHARED_DATA") and not Path("../shared/data").is_dir(), reason="no real rows"
)
def test_real_rows_of_criteo_kaggle_are_read_without_a_bad_one() -> None:
    folder = Path(os.environ.get("RAP_SHARED_DATA", "../shared/data"))
    columns = {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "list<int64>"}
    csv = {"columnNames": ["label", "int_{0..12}", "cat_{0..25}"], "hexColumns": ["cat_{0..25}"]}
    path = folder / "criteo_kaggle_200.csv"
    spec = job(path, columns={**columns}, batch_rows=1000, format="csv", csv=csv)
    with ranks(spec) as (source,):
        batches = step([source])
        assert source.counts().bad_rows == {}
    assert batches is not None
    lines = path.read_text().splitlines()[1:]
    first = lines[0].split(",")
    batch = batches[0]
    assert batch.num_rows == len(lines)
    assert batch.columns["cat_0"].values_N[0].item() == int(first[14], 16)
    assert batch.columns["int_2"].values_N[0].item() == float(first[3])
    assert int(batch.columns["label"].values_N.sum()) == sum(line.startswith("1") for line in lines)
