"""The CRD is the contract's, committed, and structural."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from rap_contract.crd import COLUMNS, definition
from rap_contract.yaml_text import yaml_text

COMMITTED = Path(__file__).resolve().parents[2] / "manifests" / "crd" / "rapjobs.rap.dev.yaml"
HINT = "PYTHONPATH=operator python -m rap_contract.crd > manifests/crd/rapjobs.rap.dev.yaml"


def schema() -> dict[str, Any]:
    found: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_the_committed_crd_is_the_contracts() -> None:
    text = COMMITTED.read_text()
    assert text.partition("\n")[2] == yaml_text(definition()), f"run: {HINT}"
    assert yaml.safe_load(text) == definition(), "the file must mean what it says to any YAML reader"


def test_the_schema_is_structural() -> None:
    text = json.dumps(schema())
    for word in ("$ref", "anyOf", "oneOf", "allOf", "patternProperties", "x-rap"):
        assert f'"{word}' not in text


def test_every_field_of_the_spec_says_what_it_is() -> None:
    silent = []

    def visit(node: dict[str, Any], place: str) -> None:
        for name, child in node.get("properties", {}).items():
            if not child.get("description") and "ops.items" not in place:
                silent.append(f"{place}.{name}")
            visit(child, f"{place}.{name}")
        for key in ("items", "additionalProperties"):
            if isinstance(node.get(key), dict):
                visit(node[key], f"{place}.{key}")

    visit(schema()["properties"]["spec"], "spec")
    optimizers = [name for name in silent if name.startswith("spec.optimizer")]
    assert [name for name in silent if name not in optimizers] == []


def test_choices_have_no_default_that_would_stay_beside_another_choice() -> None:
    optimizer = schema()["properties"]["spec"]["properties"]["optimizer"]
    for part in ("dense", "embedding"):
        assert "default" not in optimizer["properties"][part]
        assert optimizer["properties"][part]["maxProperties"] == 1


def test_the_printer_columns_are_those_people_asked_for() -> None:
    names = [name for name, _, _, _ in COLUMNS]
    assert names == ["Phase", "Ready", "Samples/s", "Exposed%", "Freshness", "Lag", "Plan", "Restarts", "Age"]
