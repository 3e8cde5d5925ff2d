"""The base of every declared value: frozen, camelCase outside, unknown keys refused."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A frozen, keyword-only value whose keys are camelCase in YAML and snake_case in Python."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",
        allow_inf_nan=False,
    )
