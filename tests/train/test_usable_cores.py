"""Threads are as many as a pod's CPU limit allows, whatever the node has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rap_trainer.cores import usable_cores


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
