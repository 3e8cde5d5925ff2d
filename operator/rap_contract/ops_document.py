"""The reference of all ops as Markdown, from their own declarations: `python -m rap_contract.ops_document`.

docs/ops.md is its output; a test holds them together. Adds nothing that an op does not say of itself.
"""

from __future__ import annotations

import json
from typing import Any

from rap_contract.ops import OPS, Op

INTRODUCTION = """\
# Ops

Made by `PYTHONPATH=operator python -m rap_contract.ops_document > docs/ops.md`; edit the ops, not this page.

A feature is a column and a chain of ops: `ops: [{fillNull: {value: 0}}, {sigridHash: {}}]`. A step is exactly
one op. Numbers are `int32`, `int64`, `float32` or `float64`; most ops take a number or, element by element, a list.
Nothing is promoted silently: where an op does not take a type, `rap validate` names the column, the op and both types.

- **Nulls.** A row is null if its value, or any element of its list, is null (`nulls: propagate`); with `nulls: skip`
  null elements count as absent. `fillNull` at the start of a chain replaces null elements; after another op it
  replaces null rows, a null list by a list of one element. A null row of a sparse feature is an empty list; a dense
  feature must not be null. NaN is not null (`fillNull: {nan: true}` treats it so).
- **Weights** (`weights: COLUMN`) follow their elements through every op; a null weight counts as 1.
- **Names** in `with`, `match`, `scores`, `idScores`, `matchScores` and `offsetColumn` mean a column or, where no
  column has the name, the final value of another feature. Scores run parallel to their ids.
- **Integers** divide by floor: a remainder has the sign of the divisor. Hashes are 64-bit words with wrapping
  arithmetic: `twang_mix64` is Thomas Wang's mix; `hash_128_to_64(u, l)` with K = 0x9ddfea08eb382d69 is
  `a = (l ^ u) * K; a ^= a >> 47; b = (u ^ a) * K; b ^= b >> 47; b * K`, taken as a signed number. `sigridHash` is
  `hash_128_to_64(salt, twang_mix64(id))` modulo `maxValue`, as in TorchArrow.
- **Ids** of a table must be proven to be below its rows by the ops (`sigridHash`, `positiveModulus`, `clamp`,
  `bucketize`, ...), or the table says `outOfRange: zero`.
- A number's result is the same in every batch, whatever stands beside it.
"""
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
ITEMS = {"minItems": "≥", "maxItems": "≤"}


def document() -> str:
    """The whole page."""
    ordered = sorted(OPS.values(), key=lambda op: op.yaml_name().lower())
    return "\n".join([INTRODUCTION, *(_section(op) for op in ordered)])


def _section(op: type[Op]) -> str:
    doc = "\n\n".join(" ".join(part.split()) for part in (op.__doc__ or "").split("\n\n"))
    lines = [f"## {op.yaml_name()}", "", doc, ""]
    schema = op.model_json_schema(by_alias=True)
    required = schema.get("required", [])
    properties: dict[str, Any] = schema.get("properties", {})
    if properties:
        lines += ["| parameter | | default | |", "|---|---|---|---|"]
    for name, field in properties.items():
        default = "required" if name in required else "" if field.get("default") is None else _code(field["default"])
        description = " ".join(field.get("description", "").split())
        lines.append(f"| `{name}` | {_kind(field)} | {default} | {description} |")
    return "\n".join([*lines, *([""] if properties else [])])


def _kind(field: dict[str, Any]) -> str:
    """Type and bounds."""
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    if "enum" in field:
        return ", ".join(_code(each) for each in field["enum"])
    types = [option.get("type", "") for option in options]
    kind = "number" if "number" in types else " or ".join(types)
    option = options[0]
    limits = [f"{sign} {_number(option[key])}" for key, sign in LIMITS.items() if key in option]
    if kind == "array":
        kind = f"list of {option['items']['type']}s"
        limits = [f"{sign} {option[key]} items" for key, sign in ITEMS.items() if key in option]
    return ", ".join([kind, *limits])


def _number(number: float) -> str:
    powers = {2**63: "2^63", -(2**63): "-2^63", 2**31: "2^31"}
    return powers.get(int(number), f"{number:g}")


def _code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    print(document(), end="")
