"""All ops of this package, found by their files, and the one-of object a chain is written with."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any, Self

from pydantic import Field, create_model, model_validator

from rap_contract.model import Model
from rap_contract.ops.base import Op

_NOT_OPS = {"base", "lists", "registry"}


def _discover() -> dict[str, type[Op]]:
    found: dict[str, type[Op]] = {}
    for module_info in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module_info.name in _NOT_OPS:
            continue
        module = importlib.import_module(f"rap_contract.ops.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Op) and value.__module__ == module.__name__:
                found[value.stem] = value
    return dict(sorted(found.items()))


OPS: dict[str, type[Op]] = _discover()
"""Op classes by stem, sorted."""


class _OneOp(Model):
    """One step of a chain: exactly one op with its parameters."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [stem for stem in OPS if getattr(self, stem) is not None]
        if len(given) != 1:
            raise ValueError(f"one op a step; {len(given)} are given")
        return self

    @property
    def op(self) -> Op:
        given: Op = next(op for stem in OPS if (op := getattr(self, stem)) is not None)
        return given


_fields: dict[str, Any] = {
    stem: (op | None, Field(default=None, alias=op.yaml_name(), description=(op.__doc__ or "").strip().split("\n")[0]))
    for stem, op in OPS.items()
}
OpSpec: type[_OneOp] = create_model("OpSpec", __base__=_OneOp, __doc__=_OneOp.__doc__, **_fields)
