"""The built-in DLRM's dense part as explicit forward and backward functions over flat buffers.

Forward: bottom MLP; interaction; top MLP; loss. Backward: `backward_top` and `backward_interaction` are the chain that
reaches the embeddings' gradient (the critical path); the rest may run beside them, beside the exchange and the tables'
update, in any order, `finish_gradients` last. No autograd, no gather, no copy between
layouts. Not here: table lookup, exchange, optimizer.

B rows, D dim, K1 padded interaction columns, N a layer's outputs, P blocks of rows, S sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from rap_trainer.captured import pointwise
from rap_trainer.captured.blocks import Blocks, pad_to
from rap_trainer.captured.flat import Allocate, FlatParameters
from rap_trainer.captured.interaction import interaction_backward, interaction_forward
from rap_trainer.captured.replicated import ReplicatedTables
from rap_trainer.captured.tile import TileGradients, TileMap

WIDTH_PAD = 4
"""Elements a weight's row is padded to: 16 bytes, below which cuBLAS leaves the tensor cores (H200, 2026-11)."""


@dataclass(frozen=True, kw_only=True)
class Mlps:
    """The linear layers of a DLRM, in order; ReLU follows each but the last of `top`."""

    bottom: Sequence[nn.Linear]
    top: Sequence[nn.Linear]

    def __post_init__(self) -> None:
        if len(self.top) < 2:
            raise ValueError("the top MLP needs a hidden layer")
        if any(layer.bias is None for layer in (*self.bottom, *self.top)):
            raise ValueError("every layer needs a bias")


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """What the exchange delivers: the own lookup block and the buffer of the peers' blocks."""

    own: torch.Tensor
    peer: torch.Tensor
    present_BS: torch.Tensor | None = None
    """int8: which sparse features a row has, in rank-major order; None: all."""


class DensePart:
    """The dense part for one batch size. Buffers are allocated once; each call overwrites them."""

    splits = True
    """`forward_rows` takes rows in parts."""

    def __init__(
        self,
        mlps: Mlps,
        blocks: Blocks,
        *,
        allocate: Allocate,
        precision: str = "tf32",
        tables: ReplicatedTables | None = None,
    ) -> None:
        """`tables`: those every rank has, whose weights lie behind the layers'."""
        layers = (*mlps.bottom, *mlps.top)
        weight = layers[0].weight
        self.blocks = blocks
        self.tile = TileMap.of(blocks, weight.device)
        self.num_bottom = len(mlps.bottom)
        widths = [layer.in_features for layer in layers]
        widths[0] = pad_to(widths[0], WIDTH_PAD)
        widths[self.num_bottom] = self.tile.padded_columns
        if mlps.top[0].in_features != self.tile.num_columns:
            raise ValueError(f"the top MLP takes {mlps.top[0].in_features} columns, got {self.tile.num_columns}")
        self.early = range(self.num_bottom, len(layers) - 2)
        """Hidden layers of the top MLP but the last: most of the weights, whose gradients are reduced while the rest follows."""
        self.flat = FlatParameters(layers, widths, allocate=allocate, early=self.early, tables=tables)
        self.tables = tables
        self.precision = precision
        self.dense_width = widths[0]
        """Columns of the dense input, padding included; the padding must be zero."""
        B = blocks.batch_size
        widths_of_top = (self.tile.padded_columns, *(layer.out_features for layer in mlps.top[:-1]))
        self._bottom: list[torch.Tensor] = []
        self._top = [weight.new_zeros(B, width) for width in widths_of_top]
        """What goes into each layer of the top MLP."""
        self._top_grads: list[torch.Tensor] = []
        self._grad_BK1 = self._top[0]
        layout = self.flat.layout
        sums_PS = weight.new_zeros(pointwise.num_blocks(B), layout.sums_size)
        last_hidden = len(layers) - 2
        self._loss = pointwise.LossGradients(
            grad_BN=weight.new_zeros(B, layers[-1].in_features),
            sums_PS=sums_PS,
            hidden_at=layout.bias_column(last_hidden),
            weight_at=layout.last_weight_column,
            bias_at=layout.bias_column(len(layers) - 1),
        )
        self.grad_bottom_BD = weight.new_zeros(B, blocks.dim)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What a forward pass changes besides: nothing."""
        return []

    def forward_bottom(self, dense: torch.Tensor) -> None:
        """Bottom MLP over dense [B, dense_width]."""
        self._bottom = [dense]
        for i in range(self.num_bottom):
            out = dense.new_empty(dense.shape[0], self.flat.weights[i].shape[0])
            self._layer(i, self._bottom[-1], out)
            self._bottom.append(out)

    def forward_rows(self, embeddings: Embeddings, rows: slice) -> None:
        """Interaction and the top MLP's hidden layers for some rows; after `forward_bottom`."""
        interaction_forward(
            self._bottom[-1],
            embeddings.own,
            embeddings.peer,
            self._top[0],
            self.tile,
            present_BS=embeddings.present_BS,
            precision=self._dot_precision,
            rows=rows,
        )
        for i, (below, above) in enumerate(pairwise(self._top), self.num_bottom):
            self._layer(i, below[rows], above[rows])

    def forward_loss(self, targets: pointwise.Targets, outcome: pointwise.Outcome) -> None:
        """Last layer and loss into `outcome`; after `forward_rows` of all rows."""
        last = len(self.flat.weights) - 1
        pointwise.loss_and_last_layer(
            self._top[-1], self.flat.weights[last], self.flat.biases[last], targets, outcome, into=self._loss
        )

    def backward_top(self) -> None:
        """From the loss through the top MLP; after `forward_loss`."""
        grad = self._loss.grad_BN
        self._top_grads = [grad]
        for i in range(len(self.flat.weights) - 2, self.num_bottom, -1):
            grad = grad @ self.flat.weights[i]
            below = self._top[i - self.num_bottom]
            pointwise.relu_backward(grad, below, self._loss.sums_PS, self.flat.layout.bias_column(i - 1))
            self._top_grads.append(grad)
        self._grad_BK1 = grad @ self.flat.weights[self.num_bottom]

    def backward_interaction(self, embeddings: Embeddings, *, own: torch.Tensor, peer: torch.Tensor) -> None:
        """The embeddings' gradients, written to `own` and `peer`; after `backward_top`."""
        interaction_backward(
            self._bottom[-1],
            embeddings.own,
            embeddings.peer,
            self._grad_BK1,
            self.tile,
            into=TileGradients(bottom_BD=self.grad_bottom_BD, own=own, peer=peer),
            present_BS=embeddings.present_BS,
            precision=self._dot_precision,
        )

    def early_weight_gradients(self) -> None:
        """Weight gradients of the layers `early` into the flat buffer; after `backward_top`."""
        for layer in self.early:
            self._weight_gradient(layer)

    def last_weight_gradient(self) -> None:
        """The same of the top MLP's last hidden layer."""
        self._weight_gradient(len(self.flat.weights) - 2)

    def _weight_gradient(self, layer: int) -> None:
        grad = self._top_grads[len(self.flat.weights) - 2 - layer]
        torch.mm(grad.t(), self._top[layer - self.num_bottom], out=self.flat.weight_grads[layer])

    def backward_bottom(self) -> None:
        """The bottom MLP's backward and weight gradients; after `backward_interaction`."""
        grad, sums_PS = self.grad_bottom_BD, self._loss.sums_PS
        bias = self.flat.layout.bias_column(self.num_bottom - 1)
        pointwise.bottom_gradient(grad, self._bottom[-1], self._grad_BK1, sums_PS, bias)
        for i in range(self.num_bottom - 1, -1, -1):
            torch.mm(grad.t(), self._bottom[i], out=self.flat.weight_grads[i])
            if i:
                grad = grad @ self.flat.weights[i]
                pointwise.relu_backward(grad, self._bottom[i], sums_PS, self.flat.layout.bias_column(i - 1))

    def finish_gradients(self) -> None:
        """All bias gradients and the last layer's, from the column sums of every pass before."""
        torch.sum(self._loss.sums_PS, 0, out=self.flat.sum_grads)

    def _layer(self, i: int, x: torch.Tensor, out: torch.Tensor) -> None:
        weight, bias = self.flat.weights[i], self.flat.biases[i]
        if x.is_cuda:
            torch._addmm_activation(bias, x, weight.t(), use_gelu=False, out=out)
            return
        torch.addmm(bias, x, weight.t(), out=out).relu_()

    @property
    def _dot_precision(self) -> str:
        return "ieee" if self.precision == "fp32" else "tf32"
