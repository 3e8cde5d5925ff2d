"""Dead letters keep what could not be trained, with its place and reason."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest
from rap_trainer.batch import Position
from rap_trainer.stream.dead_letters import MAX_LOGGED, DeadLetter, FileDeadLetters, LoggedDeadLetters


def letter(offset: int, payload: bytes = b'{"label": 2}') -> DeadLetter:
    return DeadLetter(
        reason="label", detail="column label is 2", unit="clicks/0", position=Position(offset, 3), payload=payload
    )


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]


def test_a_letter_holds_origin_reason_and_the_record(tmp_path: Path) -> None:
    letters = FileDeadLetters(tmp_path / "dead")
    letters.write([letter(17), letter(18, b"\xff\x00")])
    letters.close()
    first, second = lines(tmp_path / "dead")
    assert first == {
        "reason": "label",
        "detail": "column label is 2",
        "unit": "clicks/0",
        "offset": 17,
        "row": 3,
        "record": {"label": 2},
    }
    assert base64.b64decode(str(second["base64"])) == b"\xff\x00"


def test_flushed_letters_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    letters = FileDeadLetters(tmp_path)
    letters.write([letter(1)])
    letters.flush()
    assert [line["offset"] for line in lines(tmp_path)] == [1]
    letters.close()


def test_files_rotate_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    letters = FileDeadLetters(tmp_path, max_file_bytes=1, max_files=3)
    letters.write([letter(offset) for offset in range(10)])
    letters.close()
    assert [line["offset"] for line in lines(tmp_path)] == [8, 9]


def test_a_restart_goes_on_in_a_new_file(tmp_path: Path) -> None:
    for offset in range(3):
        letters = FileDeadLetters(tmp_path)
        letters.write([letter(offset)])
        letters.close()
        letters.close()
    assert [line["offset"] for line in lines(tmp_path)] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_without_letters_no_file_is_left(tmp_path: Path) -> None:
    FileDeadLetters(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_the_first_places_are_logged_and_the_flood_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        letters = LoggedDeadLetters()
        letters.write([letter(offset) for offset in range(MAX_LOGGED - 1)])
        letters.write([letter(offset) for offset in range(100)])
        letters.write([letter(offset) for offset in range(100)])
    assert len(caplog.records) == MAX_LOGGED + 1
    assert "clicks/0:0 row 3: column label is 2" in caplog.text
