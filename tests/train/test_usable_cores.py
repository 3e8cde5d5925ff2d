"""Threads are as many as a pod's CPU limit and its readers leave, whatever the node has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rap_contract.source import Source
from rap_trainer.cores import threads_of_rank, usable_cores

KAFKA: dict[str, Any] = {"kafka": {"bootstrapServers": ["localhost:9092"], "topic": "t"}}


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000\n", 8), ("350000 100000\n", 3), ("50000 100000\n", 1), ("6400000 100000\n", 8)],
    ids=["no limit", "three and a half", "half", "more than there are"],
)
def test_a_limit_of_the_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    (tmp_path / "cpu.max").write_text(limit)
    assert usable_cores(tmp_path / "cpu.max") == cores


def test_without_a_limit_pinned_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    assert usable_cores(tmp_path / "none") == 2


@pytest.mark.parametrize(
    ("source", "ranks", "cores", "threads"),
    [
        ({"files": {"path": "p"}}, 1, 2, 2),
        ({"files": {"path": "p"}}, 4, 2, 1),
        (KAFKA, 1, 2, 1),
        (KAFKA, 2, 16, 7),
        ({"kafka": {**KAFKA["kafka"], "readersPerRank": 3}}, 2, 16, 5),
        (KAFKA, 8, 8, 1),
    ],
    ids=["files", "more ranks than cores", "a reader", "two readers", "six readers", "no core is left"],
)
def test_readers_of_a_topic_have_cores_that_no_thread_of_a_rank_takes(
    source: dict[str, Any], ranks: int, cores: int, threads: int
) -> None:
    assert threads_of_rank(Source.model_validate(source), ranks, cores) == threads
