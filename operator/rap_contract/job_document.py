"""The reference of a RAPJob's fields as Markdown, from its models: `python -m rap_contract.job_document`.

docs/job-reference.md is its output; a test holds them together. Ops have a page of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rap_contract.crd import definition

INTRODUCTION = """\
# RAPJob

Made by `PYTHONPATH=operator python -m rap_contract.job_document > docs/job-reference.md`; edit the models in
`rap_contract`, not this page.

`rap validate JOB.yaml` checks all of it at once, relations included, and `kubectl explain rapjob.spec --recursive`
shows it in a cluster. A name with `{0..25}` stands for a range. Seconds may be fractions. Ops are on [their own page](ops.md).
"""
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "minLength": "length ≥"}
_OPS = "ops"
"""Their parameters are on another page."""


def document() -> str:
    """The whole page."""
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    lines = [INTRODUCTION]
    for part in ("spec", "status"):
        about = " ".join(schema[part].get("description", "").split())
        lines += [f"## {part}", "", about, "", "| field | type | default | |", "|---|---|---|---|"]
        lines += [*_rows(schema[part], ""), ""]
    return "\n".join(lines)


def _rows(schema: dict[str, Any], prefix: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        about = " ".join(field.get("description", "").split()).replace("|", "\\|")
        yield f"| `{path}` | {_type(field)} | {_default(field, is_required=name in required)} | {about} |"
        if name == _OPS:
            continue
        yield from _rows(field, f"{path}.")
        yield from _rows(field.get("items", {}), f"{path}[].")
        extra = field.get("additionalProperties")
        if isinstance(extra, dict):
            yield from _rows(extra, f"{path}.NAME.")


def _type(field: dict[str, Any]) -> str:
    """The type with its bounds, short."""
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}"
    limits = [f"{sign} {field[key]:g}" for key, sign in _LIMITS.items() if key in field]
    return ", ".join([kind, *limits])


def _default(field: dict[str, Any], *, is_required: bool) -> str:
    if is_required:
        return "required"
    return f"`{json.dumps(field['default'])}`" if "default" in field else ""


if __name__ == "__main__":
    print(document(), end="")
