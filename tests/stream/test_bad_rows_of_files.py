"""Bad rows of files: dead letters once, the budget, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from rap_trainer.stream.files import FileSource
from rap_trainer.stream.source import DataBudgetExceeded, SourceError
from stream.file_jobs import flat, job, ranks, table, train, write


def letters(directory: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]
    return [(line["unit"], line["offset"]) for line in lines]


@pytest.mark.parametrize("ranks_per_node", [1, 3])
def test_each_bad_row_is_one_dead_letter_and_counted_once_however_many_ranks_see_it(
    tmp_path: Path, ranks_per_node: int
) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 50, bad=[0, 7, 49]), row_group_size=10)
    write(tmp_path / "events", "b.parquet", table(50, 10, bad=range(50, 60)))
    dead = tmp_path / "dead"
    spec = job(tmp_path / "events", batch_rows=5, deadLetter={"path": str(dead)})
    with ranks(spec, 3, ranks_per_node=ranks_per_node) as sources:
        train(sources)
        assert [source.counts().bad_rows for source in sources] == [{"label": 13}, {}, {}]
        assert [source.counts().rows for source in sources] == [60, 0, 0]
    assert letters(dead) == [("a.parquet", row) for row in (0, 7, 49)] + [("b.parquet", row) for row in range(10)]


def test_rows_read_ahead_but_never_taken_leave_no_letter(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 50, bad=[2, 30]))
    dead = tmp_path / "dead"
    with ranks(job(tmp_path / "events", batch_rows=5, deadLetter={"path": str(dead)})) as sources:
        train(sources, max_steps=2)
    assert letters(dead) == [("a.parquet", 2)]


def test_letters_of_rows_before_a_checkpoint_are_on_disk_when_it_may_follow(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 50, bad=[2]))
    dead = tmp_path / "dead"
    with ranks(job(tmp_path / "events", batch_rows=5, deadLetter={"path": str(dead)})) as sources:
        train(sources, max_steps=1)
        sources[0].settle()
        assert letters(dead) == [("a.parquet", 2)]


def test_dead_letters_that_cannot_be_kept_stop_the_source_with_a_hint(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 10, bad=[2]))
    (tmp_path / "dead").write_text("a file, not a directory")
    spec = job(tmp_path / "events", deadLetter={"path": str(tmp_path / "dead")})
    with pytest.raises(SourceError, match=r"dead: .*deadLetter.path"), ranks(spec):
        pass


def until_budget(sources: list[FileSource]) -> list[int]:
    rows: list[int] = []
    with pytest.raises(DataBudgetExceeded) as stopped:
        while one := flat(train(sources, max_steps=1)):
            rows += one[0]
    assert "errorBudget" in str(stopped.value)
    assert "label: " in str(stopped.value)
    return rows


@pytest.mark.parametrize("world_size", [1, 2])
def test_past_the_error_budget_the_source_stops_at_the_same_step_on_any_ranks(tmp_path: Path, world_size: int) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 1000, bad=range(500, 1000, 2)), row_group_size=100)
    budget = {"ratio": 0.05, "windowRows": 200}
    with ranks(job(tmp_path / "events", batch_rows=20 // world_size, errorBudget=budget), world_size) as sources:
        assert until_budget(sources) == list(range(500))


def test_a_stream_of_nothing_but_bad_rows_stops_too(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 1000, bad=range(1000)))
    budget = {"ratio": 0.05, "windowRows": 200}
    with ranks(job(tmp_path / "events", follow=True, errorBudget=budget)) as sources:
        assert until_budget(sources) == []


def test_a_short_stream_is_judged_at_its_end(tmp_path: Path) -> None:
    write(tmp_path / "events", "a.parquet", table(0, 20, bad=[18, 19]))
    with ranks(job(tmp_path / "events", batch_rows=5, errorBudget={"ratio": 0.05, "windowRows": 10_000})) as sources:
        assert until_budget(sources) == list(range(18))


def test_ids_past_2_to_63_are_bad_rows_with_their_place(tmp_path: Path) -> None:
    ids = pa.array([[row] if row != 3 else [2**63 + 1] for row in range(6)], pa.list_(pa.uint64()))
    rows = table(0, 6).drop_columns(["ids"]).append_column("ids", ids)
    write(tmp_path / "events", "a.parquet", rows)
    dead = tmp_path / "dead"
    with ranks(job(tmp_path / "events", deadLetter={"path": str(dead)})) as sources:
        assert flat(train(sources)) == [[0, 1, 2, 4, 5]]
        assert sources[0].counts().bad_rows == {"out_of_range": 1}
    assert letters(dead) == [("a.parquet", 3)]
