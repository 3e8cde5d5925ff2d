"""Values of several columns as one value, and back: one call of an op instead of one a column.

Shapes: k columns of B rows stand one after the other as k * B rows. Only for values without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from rap_trainer.ops.value import Dense, Jagged, Value, elements


@dataclass(frozen=True, eq=False)
class Joined:
    """A value of several columns that stand one after the other."""

    value: Value
    copies: int

    @cached_property
    def parts(self) -> list[Value]:
        """The columns apart, as views."""
        return parted(self.value, self.copies)


@dataclass(frozen=True)
class Piece:
    """One column of a joined value, taken apart only if somebody needs it alone."""

    whole: Joined
    place: int

    @property
    def value(self) -> Value:
        return self.whole.parts[self.place]


def runs(pieces: Sequence[Value | Piece]) -> list[Joined]:
    """The same columns in the same order, those that already stand one after the other kept together."""
    result: list[Joined] = []
    place = 0
    while place < len(pieces):
        piece = pieces[place]
        if isinstance(piece, Piece) and piece.place == 0:
            copies = piece.whole.copies
            if all(
                isinstance(each, Piece) and each.whole is piece.whole and each.place == i
                for i, each in enumerate(pieces[place : place + copies])
            ) and place + copies <= len(pieces):
                result.append(piece.whole)
                place += copies
                continue
        result.append(Joined(alone(piece), 1))
        place += 1
    return result


def alone(piece: Value | Piece) -> Value:
    """The column by itself."""
    return piece.value if isinstance(piece, Piece) else piece


def joined(values: Sequence[Value]) -> Value:
    """The columns one after the other. All are dense or all jagged, of one type, weighted or not."""
    if len(values) == 1:
        return values[0]
    first = values[0]
    if isinstance(first, Dense):
        return Dense(
            values_B=torch.cat([elements(each) for each in values]),
            nulls_B=_flags([each.nulls_B for each in values], [elements(each).numel() for each in values]),
        )
    lists = [each for each in values if isinstance(each, Jagged)]
    assert len(lists) == len(values)
    weights = [each.weights_N for each in lists if each.weights_N is not None]
    assert len(weights) in (0, len(lists))
    return Jagged(
        values_N=torch.cat([each.values_N for each in lists]),
        lengths_B=torch.cat([each.lengths_B for each in lists]),
        nulls_N=_flags([each.nulls_N for each in lists], [each.values_N.numel() for each in lists]),
        nulls_B=_flags([each.nulls_B for each in lists], [each.lengths_B.numel() for each in lists]),
        weights_N=torch.cat(weights) if weights else None,
    )


def sizes_of(value: Value, copies: int) -> list[int]:
    """Elements of each of the columns."""
    if copies == 1:
        return [elements(value).numel()]
    if isinstance(value, Dense):
        return [value.values_B.numel() // copies] * copies
    sizes: list[int] = value.lengths_B.view(copies, -1).sum(1).tolist()
    return sizes


def parted(value: Value, copies: int) -> list[Value]:
    """The columns of a joined value, as views."""
    if copies == 1:
        return [value]
    if isinstance(value, Dense):
        nulls = _parts(value.nulls_B, copies)
        return [Dense(values_B=v, nulls_B=n) for v, n in zip(value.values_B.chunk(copies), nulls, strict=True)]
    sizes = sizes_of(value, copies)
    assert value.nulls_N is None
    weights = [None] * copies if value.weights_N is None else torch.split(value.weights_N, sizes)
    return [
        Jagged(values_N=v, lengths_B=lengths_B, nulls_B=nulls_B, weights_N=w)
        for v, lengths_B, nulls_B, w in zip(
            torch.split(value.values_N, sizes),
            value.lengths_B.view(copies, -1),
            _parts(value.nulls_B, copies),
            weights,
            strict=True,
        )
    ]


def _flags(parts: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> torch.Tensor | None:
    """Null flags one after the other; None where there are none at all."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    none = known[0].new_zeros(())
    return torch.cat([none.expand(size) if part is None else part for part, size in zip(parts, sizes, strict=True)])


def _parts(flags: torch.Tensor | None, copies: int) -> Sequence[torch.Tensor | None]:
    return [None] * copies if flags is None else list(flags.view(copies, -1))
