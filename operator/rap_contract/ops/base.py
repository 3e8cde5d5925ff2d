"""What every op declares: parameters, the names it reads besides its chain, and its typing rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from rap_contract.model import Model
from rap_contract.types import ValueType

Bound = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A constant of float arithmetic: float32 holds it, and its products with ordinary numbers."""
LEAST_SCALE = 1e-30  # of a divisor: float32 holds it as a normal number, so that nothing is divided by 0


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
        head, *tail = cls.stem.split("_")
        return head + "".join(part.capitalize() for part in tail)

    def references(self) -> tuple[str, ...]:
        """Columns or features read besides the chain's own value, in order."""
        return ()

    def parallel(self) -> Mapping[str, str]:
        """References that are lists running parallel to other lists, by name; "" is the chain's own value.

        An element that is null on one side is null on the other, so that both stay parallel.
        """
        return {}

    def with_table_rows(self, rows: int) -> Op:
        """The op with parameters that default to its feature's number of table rows filled in."""
        del rows
        return self

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        """The type of the result, or OpError if the op does not take `value`."""
        raise NotImplementedError

    def mismatch(self, takes: str, got: ValueType, hint: str = "") -> OpError:
        """The error for a value of the wrong type."""
        return OpError(f"{self.yaml_name()} takes {takes}, this is {got}", hint)

    def need_integer(self, value: ValueType) -> None:
        """OpError unless `value` is an integer or a list of integers."""
        if not value.dtype.is_integer:
            raise self.mismatch("int32 or int64", value, "bucketize makes integers of numbers")

    def need_float(self, value: ValueType) -> None:
        """OpError unless `value` is a float or a list of floats."""
        if value.dtype.is_integer:
            raise self.mismatch(
                "float32 or float64", value, "declare the column as float32, or begin with log, log1p or onehot"
            )

    def need_list(self, value: ValueType) -> None:
        """OpError unless `value` is a list."""
        if not value.is_list:
            raise self.mismatch("a list", value, f"declare the column as list<{value.dtype}>")

    def whole(self, name: str, number: float, value: ValueType) -> int:
        """A parameter as a whole number that fits the integer type of `value`, or OpError."""
        low, high = value.dtype.integer_bounds
        if number != int(number):
            raise OpError(f"{name} {number} of {self.yaml_name()} does not fit {value}", "give a whole number")
        if not low <= int(number) <= high:
            raise OpError(f"{name} {number} does not fit {value}", f"give a number from {low} to {high}")
        return int(number)
