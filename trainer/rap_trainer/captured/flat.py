"""All dense parameters in one buffer, all their gradients in another, with the same layout.

One all-reduce, one optimizer kernel, no copies. Weights are stored with padded rows (tf32 matrix
products want rows of 16-byte multiples); the model's parameters become views of the buffer, so
checkpoints and the eager runtime see the very same values. Padding is zero and stays zero.

What the backward obtains first (most of the top MLP's weights) lies first, so that it is reduced and updated while the rest is
still computed; what it obtains by column sums (all biases and the last layer's single row) lies together
in the tail, so that one reduction finishes it. Tables of which every rank has a copy lie behind all others. Not an optimizer: see dense_optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
from torch import nn

from rap_trainer.captured.blocks import pad_to

SEGMENT_ELEMENTS = 64
"""Each parameter starts at a multiple of this many elements: 256-byte alignment for fp32."""

Allocate = Callable[[int], torch.Tensor]


class Tables(Protocol):
    """Parameters of others that lie behind the dense ones."""

    size: int

    def adopt(self, values: torch.Tensor, grads: torch.Tensor) -> None:
        """Parameters become views of `values`."""

    def is_adopted(self, values: torch.Tensor) -> bool:
        """Whether they still are."""

    def views(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter with its own elements of a buffer of `size`."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One parameter's place: rows x columns stored with `width` elements a row."""

    start: int
    rows: int
    columns: int
    width: int

    @property
    def end(self) -> int:
        return self.start + pad_to(self.rows * self.width, SEGMENT_ELEMENTS)

    def padded(self, buffer: torch.Tensor) -> torch.Tensor:
        """The segment with its padding columns, [rows, width]."""
        return buffer[self.start : self.start + self.rows * self.width].view(self.rows, self.width)

    def exact(self, buffer: torch.Tensor) -> torch.Tensor:
        """The parameter's own elements, [rows, columns]."""
        return self.padded(buffer)[:, : self.columns]


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """Where each layer's weight and bias lie. A value."""

    weights: tuple[Segment, ...]
    biases: tuple[Segment, ...]
    sums_start: int
    """From here on everything is a column sum: the biases, then the last layer's weight."""
    size: int
    early_size: int
    """The weights up to here have their gradients first."""

    @property
    def sums_size(self) -> int:
        return self.size - self.sums_start

    def bias_column(self, layer: int) -> int:
        """Column of a layer's bias among the sums."""
        return self.biases[layer].start - self.sums_start

    @property
    def last_weight_column(self) -> int:
        """Column of the last layer's weight among the sums."""
        return self.weights[-1].start - self.sums_start


def flat_layout(shapes: Sequence[tuple[int, int]], widths: Sequence[int], *, early: Sequence[int] = ()) -> FlatLayout:
    """The layout of layers of `shapes` (out, in), each weight's rows padded to its entry of `widths`.

    The weights of the layers `early`, hidden ones, lie first. Raises ValueError if the last layer has more than one output or a width is below its layer's input.
    """
    if shapes[-1][0] != 1:
        raise ValueError(f"the last layer must have one output, got {shapes[-1][0]}")
    at = 0
    placed: dict[int, Segment] = {}
    hidden = range(len(shapes) - 1)
    early_size = 0
    for layer in (*early, *(layer for layer in hidden if layer not in early)):
        (rows, columns), width = shapes[layer], widths[layer]
        if width < columns:
            raise ValueError(f"width {width} is below the layer's input {columns}")
        placed[layer] = Segment(start=at, rows=rows, columns=columns, width=width)
        at = placed[layer].end
        early_size = at if layer in early else early_size
    weights = [placed[layer] for layer in hidden]
    sums_start = at
    biases: list[Segment] = []
    for rows, _ in shapes:
        biases.append(Segment(start=at, rows=1, columns=rows, width=rows))
        at = biases[-1].end
    weights.append(Segment(start=at, rows=1, columns=shapes[-1][1], width=shapes[-1][1]))
    return FlatLayout(
        weights=tuple(weights),
        biases=tuple(biases),
        sums_start=sums_start,
        size=weights[-1].end,
        early_size=early_size,
    )


class FlatParameters:
    """The buffers of a list of linear layers, whose parameters it turns into views."""

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        widths: Sequence[int],
        *,
        allocate: Allocate,
        early: Sequence[int] = (),
        tables: Tables | None = None,
    ) -> None:
        """`early`: hidden layers whose weights' gradients are known first. `tables`: what lies behind the layers."""
        self.layout = flat_layout([(layer.out_features, layer.in_features) for layer in layers], widths, early=early)
        size = self.layout.size + (0 if tables is None else tables.size)
        self.early, self.late = slice(self.layout.early_size), slice(self.layout.early_size, size)
        """Elements of the buffers whose gradients are known first, and the others."""
        first = layers[0].weight
        self.values = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.grads = allocate(size)
        self.grads.zero_()
        self.weights = [segment.padded(self.values) for segment in self.layout.weights]
        self.weight_grads = [segment.padded(self.grads) for segment in self.layout.weights]
        self.biases = [segment.padded(self.values).view(-1) for segment in self.layout.biases]
        self._layers, self._tables = tuple(layers), tables
        self._adopt()

    def _adopt(self) -> None:
        if self._tables is not None:
            self._tables.adopt(self.values[self.layout.size :], self.grads[self.layout.size :])
        for layer, weight, bias in zip(self._layers, self.layout.weights, self.layout.biases, strict=True):
            for parameter, segment in ((layer.weight, weight), (layer.bias, bias)):
                view = segment.exact(self.values).view_as(parameter) if segment is bias else segment.exact(self.values)
                with torch.no_grad():
                    view.copy_(parameter)
                parameter.data = view

    def is_adopted(self) -> bool:
        """Whether the model's parameters still are views of the buffer (a foreign load may replace them)."""
        start = self.values.untyped_storage().data_ptr()
        return (self._tables is None or self._tables.is_adopted(self.values)) and all(
            parameter.untyped_storage().data_ptr() == start
            for layer in self._layers
            for parameter in (layer.weight, layer.bias)
        )

    @property
    def sum_grads(self) -> torch.Tensor:
        """The tail of the gradients, filled by one reduction of column sums."""
        return self.grads[self.layout.sums_start : self.layout.size]

    def views(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter with its own elements of a buffer of this layout, such as an optimizer's state."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer, weight, bias in zip(self._layers, self.layout.weights, self.layout.biases, strict=True):
            pairs.append((layer.weight, weight.exact(buffer)))
            pairs.append((layer.bias, bias.exact(buffer).view(-1)))
        if self._tables is not None:
            pairs += self._tables.views(buffer[self.layout.size :])
        return pairs


class FlatTensors:
    """The buffers of any parameters of one type, one behind the other, which become views. Their gradients are known all at once."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, allocate: Allocate, tables: Tables | None = None) -> None:
        """`tables`: what lies behind the parameters."""
        first = parameters[0]
        self._parameters, self._tables = tuple(parameters), tables
        self._starts = [0, *accumulate(pad_to(each.numel(), SEGMENT_ELEMENTS) for each in parameters)]
        size = self._starts[-1] + (0 if tables is None else tables.size)
        self.values = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.grads = allocate(size)
        self.grads.zero_()
        self.early, self.late = slice(0), slice(size)
        """Elements of the buffers whose gradients are known first, and the others."""
        for parameter, view in self.own_views(self.values):
            view.copy_(parameter.detach())
            parameter.data = view
        if tables is not None:
            tables.adopt(self.values[self._starts[-1] :], self.grads[self._starts[-1] :])

    def is_adopted(self) -> bool:
        """Whether the model's parameters still are views of the buffer (a foreign load may replace them)."""
        start = self.values.untyped_storage().data_ptr()
        return (self._tables is None or self._tables.is_adopted(self.values)) and all(
            parameter.untyped_storage().data_ptr() == start for parameter in self._parameters
        )

    def own_views(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """As `views`, without tables."""
        return [
            (parameter, buffer[start : start + parameter.numel()].view_as(parameter))
            for parameter, start in zip(self._parameters, self._starts, strict=False)
        ]

    def views(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter with its own elements of a buffer of this layout, such as an optimizer's state."""
        behind = [] if self._tables is None else self._tables.views(buffer[self._starts[-1] :])
        return [*self.own_views(buffer), *behind]
