"""docs/ops.md says what the ops say of themselves."""

from __future__ import annotations

from pathlib import Path

from rap_contract.ops import OPS
from rap_contract.ops_document import document

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "ops.md"


def test_the_committed_page_is_the_ops_own() -> None:
    hint = "run: PYTHONPATH=operator python -m rap_contract.ops_document > docs/ops.md"
    assert COMMITTED.read_text() == document(), hint


def test_every_op_and_parameter_is_described() -> None:
    for op in OPS.values():
        assert f"\n## {op.yaml_name()}\n" in document()
        assert op.__doc__
        for name, field in op.model_json_schema().get("properties", {}).items():
            assert field["description"], f"{op.stem}.{name}"
