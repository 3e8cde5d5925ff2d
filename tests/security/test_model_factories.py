"""Only listed factories are imported, where there is a list: importing a module already runs its code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from contract.valid_job import VALID
from rap_contract.job import RAPJobSpec
from rap_contract.problem import InvalidDocument
from rap_trainer.model.build import build_model
from torchrec import EmbeddingBagCollection

NAME = "factory_with_a_trace:make"


def spec() -> RAPJobSpec:
    return RAPJobSpec.model_validate({**VALID["spec"], "model": {"factory": NAME}})


def build() -> None:
    build_model(spec(), EmbeddingBagCollection(tables=[]), num_dense=1)


@pytest.fixture(autouse=True)
def module_that_leaves_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Imported, it says so in a file; its factory returns no module."""
    trace = tmp_path / "imported"
    text = f"from pathlib import Path\nPath({str(trace)!r}).touch()\ndef make(*_):\n    return 'made'\n"
    (tmp_path / "factory_with_a_trace.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "factory_with_a_trace", raising=False)
    return trace


@pytest.mark.parametrize("allowed", ["", "other:make", "factory_with_a_trace:make2", "factory_with_a_trace:mak", "*x"])
def test_what_is_not_listed_is_refused_before_it_is_imported(
    allowed: str, monkeypatch: pytest.MonkeyPatch, module_that_leaves_a_trace: Path
) -> None:
    monkeypatch.setenv("RAP_MODEL_FACTORIES", allowed)
    with pytest.raises(InvalidDocument, match=r"(?s)spec.model.factory.*not allowed here.*RAP_MODEL_FACTORIES"):
        build()
    assert not module_that_leaves_a_trace.exists()


@pytest.mark.parametrize("allowed", [None, NAME, f"other:make, {NAME}", "factory_with_a_*"])
def test_what_is_listed_or_not_asked_about_is_imported(
    allowed: str | None, monkeypatch: pytest.MonkeyPatch, module_that_leaves_a_trace: Path
) -> None:
    monkeypatch.delenv("RAP_MODEL_FACTORIES", raising=False)
    if allowed is not None:
        monkeypatch.setenv("RAP_MODEL_FACTORIES", allowed)
    with pytest.raises(InvalidDocument, match="returned str"):
        build()
    assert module_that_leaves_a_trace.exists()
