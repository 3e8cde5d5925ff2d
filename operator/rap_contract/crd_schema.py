"""A structural OpenAPI v3 schema, as Kubernetes wants it, of a pydantic model.

Generic: knows nothing of a RAPJob. What a structural schema cannot say (a union of types) is left
open here and refused by the operator's own validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT = (
    "type",
    "description",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "format",
    "x-kubernetes-preserve-unknown-fields",
)
OPEN: Schema = {"x-kubernetes-preserve-unknown-fields": True}


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model` with every reference inlined."""
    document = model.model_json_schema(by_alias=True)
    definitions = document.get("$defs", {})
    for name in choices(model):
        definitions[name]["x-rap-one-of"] = True
    return _convert(document, definitions)


def choices(model: type[BaseModel]) -> frozenset[str]:
    """Names of the models below `model` of whose properties exactly one is to be given."""
    found: dict[str, bool] = {}
    waiting: list[Any] = [model]
    while waiting:
        annotation = waiting.pop()
        waiting += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation.__name__ not in found:
            found[annotation.__name__] = "_exactly_one" in annotation.__pydantic_decorators__.model_validators
            waiting += [field.annotation for field in annotation.model_fields.values()]
    return frozenset(name for name, is_choice in found.items() if is_choice)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    node = _resolved(node, definitions)
    if "anyOf" in node:
        return _with_description({**OPEN}, node)
    schema: Schema = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        schema |= {"type": "string", "enum": [node["const"]]}
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in node:
            schema |= {bound.lower(): node[f"exclusive{bound}"], f"exclusive{bound}": True}
    if schema.get("type") in ("integer", "number"):
        schema = _of_number(schema)
    if "items" in node:
        schema["items"] = _convert(node["items"], definitions)
    if schema.get("type") == "object":
        schema |= _of_object(node, definitions)
    return schema


def _of_number(schema: Schema) -> Schema:
    """Bounds at or beyond the ends of int64 go: the server compares whole numbers as int64 and would wrap them."""
    kept = dict(schema)
    if kept.get("minimum", 0) <= -(2**63):
        del kept["minimum"]
        kept.pop("exclusiveMinimum", None)
    if kept.get("maximum", 0) >= 2**63 - 1:
        del kept["maximum"]
        kept.pop("exclusiveMaximum", None)
    return kept | ({"format": "int64"} if kept["type"] == "integer" else {})


def _of_object(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    values = node.get("additionalProperties")
    patterns = node.get("patternProperties", {})
    if patterns:
        values = next(iter(patterns.values()))
    if "properties" not in node:
        if values is True or values is None or values == {}:
            return {**OPEN}
        return {"additionalProperties": _convert(values, definitions)}
    properties = {}
    for name, child in node["properties"].items():
        schema = _convert(child, definitions)
        if child.get("default") is not None and not _is_choice(child, definitions):
            # Defaults of a part come from that part's own properties.
            schema["default"] = {} if schema.get("type") == "object" else child["default"]
        properties[name] = schema
    extra: Schema = {"properties": properties}
    if node.get("required"):
        extra["required"] = sorted(node["required"])
    if node.get("x-rap-one-of"):
        extra |= {"minProperties": 1, "maxProperties": 1}
    return extra


def _is_choice(child: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """A defaulted choice would stay beside the one a later `kubectl apply` names, and both would be refused."""
    return bool(_resolved(child, definitions).get("x-rap-one-of"))


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node without references and without the null of an optional field."""
    outer = {key: node[key] for key in ("description",) if key in node}
    if "$ref" in node:
        return {**definitions[node["$ref"].rpartition("/")[2]], **outer}
    if "anyOf" in node:
        branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
        if len(branches) == 1:
            return {**_resolved(branches[0], definitions), **outer}
        if {branch.get("type") for branch in branches} == {"number", "integer"}:
            return {"type": "number", **outer}
    return node


def _with_description(schema: Schema, node: Mapping[str, Any]) -> Schema:
    return {**schema, "description": node["description"]} if "description" in node else schema
