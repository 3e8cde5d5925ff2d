"""Tables of which every rank has a copy, in the captured step: looked up for the own rows, nothing of them is exchanged.

The lookup of the eager runtime (`model/replicated_lookup.py`); weights and their dense gradient lie behind the dense parameters' in the flat buffers, so the same all-reduce and
the same optimizer take them, as DistributedDataParallel and the dense optimizer do in the eager runtime. Not here: either of these.

B rows, R rows of the lookup (B and spare ones), T features, E features beside the exchange, D dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rap_trainer.captured.blocks import Blocks, pad_to
from rap_trainer.captured.flat import SEGMENT_ELEMENTS


class ReplicatedTables:
    """The copies of one rank. Their parameters become views of the flat buffers once these call `adopt`."""

    def __init__(self, sharded: Any, blocks: Blocks) -> None:
        """`sharded`: a ShardedEmbeddingBagCollection with tables of every rank."""
        (wrapped,) = (lookup for lookup in sharded._lookups if isinstance(lookup, DistributedDataParallel))
        self._lookup, self._blocks = wrapped.module, blocks
        parts = list(self._lookup._emb_modules)
        self.kernels: list[Any] = [part.emb_module for part in parts]
        """What holds the weights, one for each kind of table."""
        self._tables = [
            [sharded.embedding_bags[table.name].weight for table in part._config.embedding_tables] for part in parts
        ]
        self.size = pad_to(sum(kernel.weights.numel() for kernel in self.kernels), SEGMENT_ELEMENTS)
        """Elements of all weights, padding included."""
        self.rows_of_last: int = self._tables[-1][-1].shape[0]
        """Rows of the table that the last feature looks up."""
        self._twins: list[nn.Parameter] = []
        """What the lookup reads in a step: the weights' memory without the hooks that DistributedDataParallel has on them."""
        self._gradients: list[torch.Tensor] = []
        self._pooled = torch.empty(0)
        self._pooled_grads: dict[int, torch.Tensor] = {}
        """By rows of the lookup: graphs of several sizes may be there at once."""

    # -- as parameters

    def adopt(self, values: torch.Tensor, grads: torch.Tensor) -> None:
        """Moves the weights into `values` [size]; gradients will be written to `grads`."""
        views = self._of_kernels(values)
        self._gradients = self._of_kernels(grads)
        with torch.no_grad():
            for kernel, view in zip(self.kernels, views, strict=True):
                view.copy_(kernel.weights)
                kernel.weights.data = view
            for parameter, view in self.views(values):
                parameter.data = view
        self._twins = [nn.Parameter(view) for view in views]

    def is_adopted(self, values: torch.Tensor) -> bool:
        """Whether the model's parameters still are views of `values`."""
        start = values.untyped_storage().data_ptr()
        held = (*(kernel.weights for kernel in self.kernels), *(parameter for parameter, _ in self.views(values)))
        return all(parameter.untyped_storage().data_ptr() == start for parameter in held)

    def views(self, buffer: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each table's parameter with its elements of a buffer of `size`."""
        return [
            (parameter, part[parameter._start_offset : parameter._end_offset].view_as(parameter))
            for part, tables in zip(self._of_kernels(buffer), self._tables, strict=True)
            for parameter in tables
        ]

    def _of_kernels(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        found, start = [], 0
        for kernel in self.kernels:
            found.append(buffer[start : start + kernel.weights.numel()])
            start += kernel.weights.numel()
        return found

    # -- in a step

    def forward(self, kjt: object, peer: torch.Tensor) -> None:
        """Looks up the own rows' ids and writes the embeddings to their place beside the peers' blocks."""
        with self._detached():
            self._pooled = self._lookup(kjt)
        self._place(peer).copy_(self._rows(self._pooled.detach()))

    def backward(self, peer_grads: torch.Tensor) -> None:
        """The tables' dense gradients, from the embeddings' at the same place; after `forward`."""
        if self._pooled.shape[0] not in self._pooled_grads:
            self._pooled_grads[self._pooled.shape[0]] = torch.zeros_like(self._pooled)
        pooled_grad = self._pooled_grads[self._pooled.shape[0]]
        self._rows(pooled_grad).copy_(self._place(peer_grads))
        found = torch.autograd.grad(self._pooled, self._twins, pooled_grad)
        for view, gradient in zip(self._gradients, found, strict=True):
            view.copy_(gradient)

    def _place(self, peer: torch.Tensor) -> torch.Tensor:
        """[B, T, D]."""
        blocks = self._blocks
        beside_BED = peer[blocks.beside_start : blocks.peer_elements].view(blocks.batch_size, -1, blocks.dim)
        return beside_BED[:, blocks.num_split :]

    def _rows(self, pooled: torch.Tensor) -> torch.Tensor:
        blocks = self._blocks
        return pooled[: blocks.batch_size].view(blocks.batch_size, blocks.num_replicated, blocks.dim)

    @contextmanager
    def _detached(self) -> Iterator[None]:
        own = [kernel._parameters["weights"] for kernel in self.kernels]
        for kernel, twin in zip(self.kernels, self._twins, strict=True):
            kernel._parameters["weights"] = twin
        try:
            yield
        finally:
            for kernel, parameter in zip(self.kernels, own, strict=True):
                kernel._parameters["weights"] = parameter
