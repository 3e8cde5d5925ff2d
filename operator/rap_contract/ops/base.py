"""What every op declares: parameters, the names it reads besides its chain, and its typing rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.alias_generators import to_camel

from rap_contract.model import Model
from rap_contract.types import ValueType


class OpError(ValueError):
    """An op does not fit the value it is applied to. Carries a hint for the author of the chain."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Op(Model):
    """The parameters of one op. A subclass is one op; its stem names it everywhere."""

    stem: ClassVar[str]
    """Name of the files that hold the op: `sigrid_hash`."""

    @classmethod
    def yaml_name(cls) -> str:
        """The key in a job's YAML: `sigridHash`."""
        return to_camel(cls.stem)

    def references(self) -> tuple[str, ...]:
        """Columns or features read besides the chain's own value, in order."""
        return ()

    def with_table_rows(self, rows: int) -> Op:
        """The op with parameters that default to its feature's number of table rows filled in."""
        del rows
        return self

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        """The type of the result, or OpError if the op does not take `value`."""
        raise NotImplementedError
