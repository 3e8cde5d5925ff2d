"""Ranks of `rap run` keep the memory that Arrow frees, and the user has the last word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from rap_trainer import launch
from rap_trainer.stream.arrow_memory import KEPT


@pytest.mark.parametrize(("given", "found"), [(None, "-1"), ("5", "5")], ids=["by default", "as the user says"])
def test_a_rank_begins_with_the_allocator_set(given: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def run_rank(*_: object) -> int:
        seen.extend(os.environ.get(name) for name in KEPT)
        return 0

    monkeypatch.setattr(launch, "run_rank", run_rank)
    monkeypatch.setattr(launch, "end_process", sys.exit)
    with patch.dict(os.environ, {"RANK": "0"}):
        for name in KEPT:
            os.environ.pop(name, None)
            if given is not None:
                os.environ[name] = given
        with pytest.raises(SystemExit):
            launch.launch(Path("job.yaml"))
    assert seen == [found]


def test_arrow_is_not_imported_before_its_allocator_is_set() -> None:
    code = "import sys, rap_trainer.cli, rap_trainer.launch; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
