"""Values between ops: one number a row, or a list a row.

Shapes: B rows, N elements. Padding: `values_N`, `nulls_N` and `weights_N` may be longer than
sum(lengths_B); what lies behind the last list is arbitrary but initialised, and no op lets it reach a
result. So an op whose output size depends on the data allocates a bound that the host knows, and
never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar, cast

import torch
from rap_contract.ops import Op


@dataclass(frozen=True, kw_only=True)
class Dense:
    """One number a row. The number under a null is arbitrary but initialised."""

    values_B: torch.Tensor
    nulls_B: torch.Tensor | None = None
    """bool, True where null; None: no nulls."""

    def with_values(self, values_B: torch.Tensor) -> Dense:
        """The same nulls over other numbers."""
        return replace(self, values_B=values_B)


@dataclass(frozen=True, kw_only=True)
class Jagged:
    """A list a row, elements of all rows one after the other."""

    values_N: torch.Tensor
    lengths_B: torch.Tensor
    """int32; 0 for a null row."""
    nulls_N: torch.Tensor | None = None
    """bool, null elements; only before the chain's first op other than fill_null."""
    nulls_B: torch.Tensor | None = None
    """bool, null rows; only after it."""
    weights_N: torch.Tensor | None = None
    """float32."""

    def with_values(self, values_N: torch.Tensor) -> Jagged:
        """The same lists with other elements."""
        return replace(self, values_N=values_N)


Value: TypeAlias = Dense | Jagged


def elements(value: Value) -> torch.Tensor:
    """All numbers of a value, [B] or [N]."""
    return value.values_B if isinstance(value, Dense) else value.values_N


Constants: TypeAlias = dict[tuple[int, Hashable], tuple[Op, object]]
"""By an op's identity and a name; holds the op, so that no other one takes its identity."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an op may use besides its values. One a batch; `constants` outlives it."""

    row_ids_B: torch.Tensor
    """int64 identity of each row of the batch."""
    copies: int = 1
    """How many columns stand one after the other in the values: they have copies * B rows."""
    counters: dict[str, torch.Tensor] = field(default_factory=dict)
    """int64 scalars on the device, counted up by ops."""
    constants: Constants = field(default_factory=dict)
    """What follows from an op's parameters alone, made once: a copy to a device would wait for it in every batch."""

    def repeated_row_ids(self) -> torch.Tensor:
        """int64 identity of each row of the values."""
        return self.row_ids_B if self.copies == 1 else self.row_ids_B.repeat(self.copies)

    def count(self, name: str, number: torch.Tensor) -> None:
        """Adds an int64 scalar to a counter."""
        known = self.counters.get(name)
        self.counters[name] = number if known is None else known + number

    def constant(self, op: Op, name: str, like: torch.Tensor, make: Callable[[], Sequence[float]]) -> torch.Tensor:
        """A parameter as a tensor with the type and device of `like`."""
        return self.once(
            op, (name, like.dtype, like.device), lambda: torch.tensor(make(), dtype=like.dtype, device=like.device)
        )

    def once(self, op: Op, name: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made for this op once in the life of `constants`."""
        known = self.constants.get((id(op), name))
        if known is None:
            known = self.constants[id(op), name] = (op, make())
        return cast(T, known[1])


References: TypeAlias = Mapping[str, Value]
