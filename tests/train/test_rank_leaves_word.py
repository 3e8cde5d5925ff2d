"""What a rank leaves for the kubelet when it ends, since torchrun hides exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rap_contract.pod import ExitCode
from rap_trainer import rank


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setattr(rank, "TERMINATION_FILE", str(path))
    return path


def said(file: Path) -> tuple[int, str]:
    document = json.loads(file.read_text())
    return document["exitCode"], document["message"]


def test_the_first_failure_of_its_own_is_heard(file: Path) -> None:
    rank._leave_word(ExitCode.PEER_LOST, "another rank is gone")
    rank._leave_word(ExitCode.DATA_BUDGET, "too many bad rows")
    rank._leave_word(ExitCode.CHECKPOINT, "too late")
    rank._leave_word(ExitCode.PEER_LOST, "another rank is gone")
    assert said(file) == (3, "too many bad rows")


def test_a_rank_that_is_done_says_nothing(file: Path) -> None:
    rank._leave_word(ExitCode.DONE, "")
    assert file.read_text() == ""


def test_a_long_message_is_cut_to_what_a_kubelet_keeps(file: Path) -> None:
    rank._leave_word(1, "x" * 10_000)
    assert len(file.read_bytes()) < 4096


def test_outside_a_pod_no_file_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "TERMINATION_FILE", str(tmp_path / "none"))
    rank._leave_word(1, "broken")
    assert not (tmp_path / "none").exists()
