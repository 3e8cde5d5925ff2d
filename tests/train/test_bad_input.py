"""What a person meets who runs `rap run` on bad input: the exit code of DESIGN 10, the place, and what to do.

The command and its processes are the real ones. A rank that dies and Ctrl-C twice are in test_training_of_two_ranks.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from rap_contract.pod import ExitCode
from rap_trainer.cli import main
from train.forge import Forge
from train.saved_state import newest, steps
from train.small_jobs import document, write_events, write_job

FILL, HASH = {"fillNull": {"value": 0}}, {"sigridHash": {"salt": 0, "maxValue": 40}}


def features(*dense_ops: Any) -> list[dict[str, Any]]:
    """The job's features with other ops on its numbers."""
    sparse = document(Path())["spec"]["features"][1]
    return [{"columns": ["int_{0..2}"], "ops": list(dense_ops)}, sparse]


def as_yaml(folder: Path, **changes: Any) -> str:
    return yaml.safe_dump(document(folder, **changes))


BAD_JOBS: dict[str, tuple[Callable[[Path], str], str]] = {
    "malformed yaml": (
        lambda folder: as_yaml(folder).replace("metadata:", "metadata: ]"),
        r"\(document\) \(line \d+\): .*job\.yaml: not YAML: .*\n    hint: check indentation, quotes and brackets",
    ),
    "unknown op": (
        lambda folder: as_yaml(folder, features=features({"fillnul": {"value": 0}})),
        r"spec\.features\[0\]\.ops\[0\]\.fillnul \(line \d+\): unknown key\n    hint: did you mean `fillNull`\?",
    ),
    "wrong type for an op": (
        lambda folder: as_yaml(folder, features=features(FILL, HASH)),
        r"spec\.features\[0\]\.ops\[1\].* \(line \d+\): .*float32.*\n    hint: ",
    ),
    "dense null without fillNull": (
        lambda folder: as_yaml(folder, features=features({"logit": {"eps": 1e-3}})),
        r"spec\.features\[0\].* \(line \d+\): .*null.*\n    hint: .*fillNull",
    ),
    "list where a scalar is due": (
        lambda folder: as_yaml(
            folder, columns={"label": "int32", "int_{0..2}": "list<float32>", "cat_{0..2}": "int64"}
        ),
        r"spec\.features\[0\].* \(line \d+\): .*list.*\n    hint: ",
    ),
}


@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize("case", BAD_JOBS)
def test_a_bad_job_is_refused_with_its_place_a_line_and_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, command: str
) -> None:
    text, expected = BAD_JOBS[case]
    path = tmp_path / "job.yaml"
    path.write_text(text(tmp_path))
    assert main([command, str(path)]) == ExitCode.INVALID
    assert re.search(expected, capsys.readouterr().err)


@dataclass(frozen=True)
class BadData:
    """Events that cannot be trained, and what is said of them."""

    code: int
    said: str
    columns: dict[str, pa.Array] = field(default_factory=dict)
    """Replace those of 64 good rows."""
    break_it: Callable[[Path], object] = lambda directory: None
    """Done to the directory of events."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the job."""


def emptied(directory: Path) -> None:
    for path in directory.iterdir():
        path.write_bytes(b"")


def forbidden(directory: Path) -> None:
    for path in directory.iterdir():
        path.chmod(0)


def without_files(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def without_rows(directory: Path) -> None:
    without_files(directory)
    write_events(directory.parent, rows=0, files=1)


def labels(*, bad: int) -> pa.Array:
    return pa.array([7] * bad + [0, 1] * ((64 - bad) // 2), pa.int32())


LISTS = pa.array([[1.0, 2.0]] * 64, pa.list_(pa.float32()))
LARGE = pa.array([[2**63 + 5, 1]] * 64, pa.list_(pa.uint64()))
DATA = {
    "a missing column": BadData(
        ExitCode.INVALID,
        r"part-000\.parquet does not fit the job:\n  column int_3 \(float32\) is missing; hint: columns go by name",
        changes={"columns": {"label": "int32", "int_{0..3}": "float32", "cat_{0..2}": "list<int64>"}},
    ),
    "a re-typed column": BadData(
        ExitCode.INVALID,
        r"part-000\.parquet does not fit the job:\n  column int_1 is string but the job declares float32; hint: text:",
        columns={"int_1": pa.array(["1"] * 64)},
    ),
    "a list where a scalar is due": BadData(
        ExitCode.INVALID,
        r"part-000\.parquet .*\n  column int_1 is list<.*> but the job declares float32; hint: a list where a single value",
        columns={"int_1": LISTS},
    ),
    "labels outside 0 and 1": BadData(
        ExitCode.DATA_BUDGET,
        r"10 of the last 64 rows are bad; .*label: 10; the newest: part-000\.parquet:9: column label is 7.*hint: .*errorBudget",
        columns={"label": labels(bad=10)},
    ),
    "ids past 2^63": BadData(
        ExitCode.DATA_BUDGET,
        r"64 of the last 64 rows are bad; .*out_of_range: 64; .*part-000\.parquet:63: column cat_2 is \[9223372036854775813, 1\].*hint: ",
        columns={"cat_2": LARGE},
    ),
    "empty files": BadData(
        ExitCode.INVALID,
        r"events: not one file can be read:\n  .*part-000\.parquet: the file has 0 bytes; hint: ",
        break_it=emptied,
    ),
    "an empty directory": BadData(
        ExitCode.INVALID,
        r"events: no files; hint: check source\.files\.path, or set follow: true",
        break_it=without_files,
    ),
    "a missing directory": BadData(
        ExitCode.INVALID,
        r"events: No such file or directory; hint: create it, or correct source\.files\.path",
        break_it=lambda directory: directory.rename(directory.with_name("elsewhere")),
    ),
    "files without read permission": BadData(
        ExitCode.INVALID,
        r"part-000\.parquet: no permission to read; hint: chmod or chown it",
        break_it=forbidden,
    ),
    "a directory without read permission": BadData(
        ExitCode.INVALID,
        r"events: Permission denied; hint: ",
        break_it=lambda directory: directory.chmod(0),
    ),
    "no row before the end": BadData(
        ExitCode.INVALID,
        r"the source ended before a single row came; see spec\.source: the path",
        break_it=without_rows,
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_trained_ends_the_run_with_its_place_and_a_hint(
    tmp_path: Path, forge: Forge, case: str
) -> None:
    bad = DATA[case]
    write_events(tmp_path, rows=64, files=1, **bad.columns)  # of two the first might be judged before the other is read
    bad.break_it(tmp_path / "events")
    try:
        run = forge.start(write_job(tmp_path, **bad.changes), num_ranks=1, may_read_all=False)
        assert run.wait() == bad.code, run.output
    finally:
        for path in tmp_path.glob("events"):
            path.chmod(0o755)
    assert re.search(bad.said, run.output), run.output
    assert "Traceback" not in run.output


def test_bad_rows_within_the_budget_are_kept_with_their_place_and_the_others_are_trained(
    tmp_path: Path, forge: Forge
) -> None:
    numbers = [[2**63 + row, row] if row == 40 else [row, row] for row in range(64)]
    write_events(tmp_path, rows=64, label=labels(bad=2), cat_2=pa.array(numbers, pa.list_(pa.uint64())))
    files = {
        "path": str(tmp_path / "events"),
        "deadLetter": {"path": str(tmp_path / "dead")},
        "errorBudget": {"ratio": 0.1},
    }
    run = forge.start(write_job(tmp_path, source={"files": files}), num_ranks=2)
    assert run.wait() == ExitCode.DONE, run.output
    letters = [json.loads(line) for path in (tmp_path / "dead").iterdir() for line in path.read_text().splitlines()]
    assert [(letter["unit"], letter["offset"], letter["reason"]) for letter in letters] == [
        ("part-000.parquet", 0, "label"),
        ("part-000.parquet", 1, "label"),
        ("part-001.parquet", 8, "out_of_range"),
    ]
    assert "61 rows" in run.output


def test_what_one_rank_alone_cannot_do_ends_all_with_its_word_and_not_with_a_lost_peer(
    tmp_path: Path, forge: Forge
) -> None:
    write_events(tmp_path, rows=20_000, label=pa.array(5_000 * [0, 7, 7, 7], pa.int32()))
    files = {
        "path": str(tmp_path / "events"),
        "deadLetter": {"path": str(tmp_path / "dead")},  # kept by the first rank
        "errorBudget": {"ratio": 1.0},
    }
    run = forge.start(write_job(tmp_path, source={"files": files}), num_ranks=2, largest_file_bytes=3 << 20)
    assert run.wait() == ExitCode.INVALID, run.output
    assert "bad records cannot be kept: File too large; hint: make room for dead letters" in run.output
    assert "another rank is gone" not in run.output


def test_files_that_cannot_be_read_are_named_and_the_others_are_trained(tmp_path: Path, forge: Forge) -> None:
    write_events(tmp_path, rows=64, files=4)
    first, second, *_ = sorted((tmp_path / "events").iterdir())
    first.write_bytes(b"")
    second.chmod(0)
    run = forge.start(write_job(tmp_path), num_ranks=1, may_read_all=False)
    assert run.wait() == ExitCode.DONE, run.output
    assert re.search(r"put aside \(empty\): .*part-000\.parquet: the file has 0 bytes; hint: ", run.output)
    assert re.search(r"put aside \(permission\): .*part-001\.parquet: no permission to read; hint: ", run.output)


@pytest.fixture
def trained(tmp_path: Path, forge: Forge) -> Path:
    """A job with a checkpoint of step 2, and rows for more."""
    write_events(tmp_path, rows=128)
    run = forge.start(write_job(tmp_path, trainer__maxSteps=2), num_ranks=1)
    assert run.wait() == ExitCode.DONE, run.output
    return tmp_path


def test_a_checkpoint_of_another_job_is_refused_and_left_as_it_is(trained: Path, forge: Forge) -> None:
    job = document(trained)
    job["metadata"]["name"] = "other"
    path = trained / "other.yaml"
    path.write_text(yaml.safe_dump(job))
    run = forge.start(path, num_ranks=1)
    assert run.wait() == ExitCode.CHECKPOINT, run.output
    assert re.search(r"step-0000000002 was written by job 'small'.*spec\.checkpoint\.path", run.output), run.output
    assert steps(trained) == [2]


def test_a_full_disk_fails_the_last_checkpoint_and_the_old_one_stays_good(trained: Path, forge: Forge) -> None:
    before = newest(trained).stat()
    run = forge.start(write_job(trained), num_ranks=1, largest_file_bytes=50_000)
    assert run.wait() == ExitCode.CHECKPOINT, run.output
    assert re.search(r"cannot write a checkpoint to .*checkpoints: .*File too large; free space or give", run.output), (
        run.output
    )
    assert steps(trained) == [2]
    assert newest(trained).stat() == before
    run = forge.start(write_job(trained), num_ranks=1)
    assert run.wait() == ExitCode.DONE, run.output
    assert "resumes at step 2" in run.output


def test_a_port_that_is_taken_is_named_with_the_key_that_sets_it(tmp_path: Path, forge: Forge) -> None:
    write_events(tmp_path, rows=64)
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))  # where the metrics are served
        holder.listen()
        port = holder.getsockname()[1]
        run = forge.start(write_job(tmp_path, trainer__metricsPort=port), num_ranks=1)
        assert run.wait() == ExitCode.INVALID, run.output
    assert re.search(
        rf"spec\.trainer\.metricsPort: port {port} .* is taken by another process\n *hint: set spec", run.output
    ), run.output
    assert not list((tmp_path / "checkpoints").glob("step-*"))
