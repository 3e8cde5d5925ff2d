"""Produced events: repeatable, learnable, drifting, bad where asked, and written whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rap_contract.pod import ExitCode
from rap_trainer.cli import main
from rap_trainer.produce import Produce, events, write_directory
from rap_trainer.produce.directory import Directory
from rap_trainer.produce.replay import NAMES
from stream.file_jobs import job, ranks, step

CLICKS = {"label": "int32", "int_{0..12}": "float32", "cat_{0..25}": "list<int64>"}


def rows(options: Produce) -> pa.Table:
    return pa.Table.from_batches(list(events(options, now_s=lambda: 1000.0))).combine_chunks()


def test_events_have_criteos_columns_and_a_time() -> None:
    table = rows(Produce(rows=10_000))
    assert table.num_rows == 10_000
    assert table.column_names == [*NAMES, "ts"]
    assert table.schema.field("cat_3").type == pa.int64()
    assert 0.1 < np.mean(table.column("label").to_numpy()) < 0.5
    assert table.column("int_11").null_count > 5000
    assert table.column("cat_0").null_count == 0


def test_equal_options_give_equal_events_however_they_are_cut() -> None:
    whole = rows(Produce(rows=20_000, seed=3, drift=1.0, mean_length=2.0))
    assert rows(Produce(rows=5000, seed=3, drift=1.0, mean_length=2.0)).equals(whole.slice(0, 5000).combine_chunks())
    assert not rows(Produce(rows=5000, seed=4)).column("int_1").equals(whole.column("int_1").slice(0, 5000))


def test_ids_follow_a_power_law() -> None:
    ids = rows(Produce(rows=50_000)).column("cat_2").to_numpy()
    _, counts = np.unique(ids, return_counts=True)
    counts = np.sort(counts)[::-1]
    assert counts[0] > 0.02 * len(ids)
    assert np.sum(counts == 1) > 0.2 * len(counts)


def entropy_of_frequent_ids(table: pa.Table, *, learn: slice, judge: slice) -> float:
    """Normalized entropy, on rows it has not seen, of a naive model: click rates by id of the small columns."""
    label = table.column("label").to_numpy().astype(float)
    base = label[judge].mean()
    logit = np.full(len(label[judge]), np.log(base / (1 - base)))
    for name in ("cat_5", "cat_8", "cat_16", "cat_19", "cat_22", "cat_13", "cat_24", "cat_4"):
        ids = table.column(name).fill_null(0).to_numpy()
        _, index = np.unique(ids, return_inverse=True)
        clicks = np.bincount(index[learn], label[learn], index.max() + 1) + 50 * base
        shown = np.bincount(index[learn], minlength=index.max() + 1) + 50
        rate = np.clip(clicks / shown, 0.01, 0.99)
        logit += (np.log(rate / (1 - rate)) - np.log(base / (1 - base)))[index[judge]]
    p = 1 / (1 + np.exp(-logit))
    loss = -np.mean(label[judge] * np.log(p) + (1 - label[judge]) * np.log(1 - p))
    return float(loss / -(base * np.log(base) + (1 - base) * np.log(1 - base)))


def test_the_truth_can_be_learned_and_drift_makes_it_stale() -> None:
    learn, judge = slice(0, 40_000), slice(80_000, 100_000)
    steady = entropy_of_frequent_ids(rows(Produce(rows=100_000)), learn=learn, judge=judge)
    drifted = entropy_of_frequent_ids(rows(Produce(rows=100_000, drift=15.0)), learn=learn, judge=judge)
    assert steady < 0.95
    assert drifted > steady + 0.03


def test_lists_have_the_mean_length_and_drift_in_it() -> None:
    table = rows(Produce(rows=40_960, mean_length=3.0, length_drift=20.0))
    lengths = np.diff(table.column("cat_1").combine_chunks().offsets.to_numpy())
    assert table.schema.field("cat_1").type == pa.list_(pa.int64())
    assert lengths[:8192].mean() == pytest.approx(3.0, rel=0.1)
    assert lengths[-8192:].mean() == pytest.approx(3.0 * np.exp(20.0 * 0.032768), rel=0.15)


def test_event_times_follow_the_rate_from_the_start() -> None:
    times = rows(Produce(rows=101, rate=10.0, start_time_s=50.0)).column("ts").to_pylist()
    assert (times[0], times[100]) == (50.0, 60.0)
    assert set(rows(Produce(rows=10)).column("ts").to_pylist()) == {1000.0}


def test_the_share_of_bad_records_is_as_asked_and_of_several_kinds(tmp_path: Path) -> None:
    write_directory(Produce(rows=20_000, bad_ratio=0.1), Directory(path=tmp_path / "events", rows_per_file=7000))
    with ranks(job(tmp_path / "events", columns=CLICKS, batch_rows=20_000)) as sources:
        step(sources)
        bad = sources[0].counts().bad_rows
    assert set(bad) == {"label", "label_missing", "out_of_range"}
    assert sum(bad.values()) == pytest.approx(2000, rel=0.15)


@pytest.mark.parametrize(
    ("format_", "header"), [("arrow", True), ("csv", True), ("csv", False), ("tsv", True), ("tsv", False)]
)
def test_every_format_is_read_as_the_same_events(tmp_path: Path, format_: str, header: bool) -> None:
    options = Produce(rows=5000, bad_ratio=0.02, hex_categories=format_ != "arrow")
    target = Directory(path=tmp_path / "events", format=format_, rows_per_file=2000, header=header)  # type: ignore[arg-type]
    write_directory(options, target)
    csv = {"hexColumns": ["cat_{0..25}"], "header": header}
    if not header:
        csv["columnNames"] = [*NAMES, "ts"]
    spec = job(tmp_path / "events", columns=CLICKS, batch_rows=5000, format=format_, csv=csv)
    with ranks(spec) as sources:
        batches = step(sources)
        bad = sources[0].counts().bad_rows
    assert batches is not None
    assert batches[0].num_rows == 5000 - sum(bad.values())
    assert 40 < sum(bad.values()) < 200
    if format_ != "arrow":
        assert {"label", "label_missing", "unparseable", "fields", "out_of_range"} == set(bad)
    clean = rows(Produce(rows=5000)).column("cat_4").to_pylist()
    ids = batches[0].columns["cat_4"].values_N.tolist()
    assert ids[0] == clean[0]
    assert set(ids) <= set(clean) | {0}


def test_files_appear_whole_and_in_time_with_a_marker_at_the_end(tmp_path: Path) -> None:
    clock = [100.0]
    seen: list[tuple[float, list[str]]] = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, sorted(p.name for p in tmp_path.iterdir())))
        clock[0] += seconds

    total = write_directory(
        Produce(rows=25, rate=10.0), Directory(path=tmp_path, rows_per_file=10), now_s=lambda: clock[0], sleep=sleep
    )
    assert total == 25
    assert [round(seconds, 6) for seconds, _ in seen] == [1.0, 1.0, 0.5]
    assert [names for _, names in seen] == [
        [],
        ["part-00000000.parquet"],
        ["part-00000000.parquet", "part-00000001.parquet"],
    ]
    assert sorted(p.name for p in tmp_path.iterdir())[0] == "_END"
    assert [pq.read_metadata(p).num_rows for p in sorted(tmp_path.glob("*.parquet"))] == [10, 10, 5]


def test_a_second_run_adds_files_and_an_ended_directory_is_refused(tmp_path: Path) -> None:
    write_directory(Produce(rows=5), Directory(path=tmp_path, end_marker=False))
    write_directory(Produce(rows=5), Directory(path=tmp_path))
    assert len(list(tmp_path.glob("part-*"))) == 2
    with pytest.raises(ValueError, match="has ended"):
        write_directory(Produce(rows=5), Directory(path=tmp_path))


def kaggle(path: Path, *, delimiter: str = ",", header: bool = True) -> Path:
    lines = [delimiter.join(["1", "", "3.0", *["7"] * 11, "05db9164", "", *["ff"] * 24]) for _ in range(30)]
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    path.write_text("\n".join([delimiter.join(names), *lines] if header else lines) + "\n")
    return path


@pytest.mark.parametrize(("delimiter", "header"), [(",", True), ("\t", False)], ids=["kaggle csv", "original text"])
def test_criteos_text_files_are_replayed_over_and_over(tmp_path: Path, delimiter: str, header: bool) -> None:
    path = kaggle(tmp_path / "day.txt", delimiter=delimiter, header=header)
    table = rows(Produce(rows=100, replay=path))
    assert table.num_rows == 100
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["label"], first["int_0"], first["int_1"], first["cat_0"], first["cat_1"]) == (
        1,
        None,
        3,
        0x05DB9164,
        None,
    )
    assert rows(Produce(replay=path)).num_rows == 30
    assert rows(Produce(replay=path, hex_categories=True)).column("cat_0")[0].as_py() == "05db9164"


def test_a_produced_parquet_file_is_replayed_as_it_was(tmp_path: Path) -> None:
    original = rows(Produce(rows=100))
    pq.write_table(original, tmp_path / "a.parquet")
    assert rows(Produce(replay=tmp_path / "a.parquet")).drop_columns(["ts"]).equals(original.drop_columns(["ts"]))


@pytest.mark.skipif(
    not os.environ.get("RAP_SHARED_DATA") and not Path("../shared/data").is_dir(), reason="no real rows"
)
@pytest.mark.parametrize("name", ["criteo_kaggle_200.csv", "criteo_terabyte_24576.parquet"])
def test_real_files_are_replayed(name: str) -> None:
    path = Path(os.environ.get("RAP_SHARED_DATA", "../shared/data")) / name
    table = rows(Produce(replay=path))
    assert table.num_rows == (200 if name.endswith("csv") else 24_576)
    assert table.column("cat_0").null_count < table.num_rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "rate must be above 0"),
        (["--bad-ratio", "2"], "bad ratio must be within 0..1"),
        (["--rows", "-1"], "rows must not be negative"),
        (["--format", "csv", "--mean-length", "3"], "lists"),
        (["--rows-per-file", "0"], "rows per file must be at least 1"),
        (["--replay", "{tmp}/other.csv"], "not a Criteo file"),
        (["--replay", "{tmp}/other.parquet"], "column label is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_produced_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    code = main(
        ["produce", "--out", str(tmp_path / "out"), *(["--rows", "10"] if "--rows" not in given else []), *given]
    )
    assert code == ExitCode.INVALID
    assert message in capsys.readouterr().err


def test_a_replayed_file_that_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "--out", str(tmp_path / "out"), "--replay", str(tmp_path / "no.parquet")]) == 1
    assert "no.parquet" in capsys.readouterr().err


def test_the_command_writes_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "--out", str(tmp_path), "--rows", "25", "--rows-per-file", "10", "--row-numbers"]) == 0
    assert "25 rows" in capsys.readouterr().out
    table = pq.read_table(sorted(tmp_path.glob("*.parquet")))
    assert table.column("row").to_pylist() == list(range(25))
