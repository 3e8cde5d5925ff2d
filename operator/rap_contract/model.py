"""The base of every declared value: frozen, camelCase outside, unknown keys refused."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Model(BaseModel):
    """A frozen, keyword-only value whose keys are camelCase in YAML and snake_case in Python.

    The docstring under a field is its description in the JSON schema. It is read from the source when a schema is made:
    pydantic's own `use_attribute_docstrings` does so for each class at its import, a fifth of the operator's start.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        ser_json_inf_nan="strings",
        allow_inf_nan=False,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docstrings(cls).items():
            properties[cls.model_fields[name].alias or name].setdefault("description", text)
        return schema


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields, by field; those of its bases included."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if not issubclass(each, Model) or each is Model:
            continue
        try:
            source = inspect.getsource(each)
        except OSError:  # made by create_model, which is told descriptions
            continue
        body = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str(said))):
                        found[field.target.id] = inspect.cleandoc(said)
    return {name: text for name, text in found.items() if name in model.model_fields}
