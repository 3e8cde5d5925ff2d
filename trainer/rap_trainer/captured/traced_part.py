"""The dense part of any model, split at its embeddings: forward and loss through torch.compile, backward by autograd.

For models of a factory, and for precisions and sizes that the part written for the GPU (`dense_part.py`) has no kernels of.
The same calls at the same places of the step, but one chain: its weight gradients do not wait for later. Gradients end in a flat
buffer, so that all-reduce and optimizer are the same as everywhere. Not here: lookup, exchange, optimizer.

B rows, F sparse features in rank-major order, D dim.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional
from torchrec import KeyedTensor
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from rap_trainer.captured.blocks import Blocks, Origin
from rap_trainer.captured.dense_part import Embeddings
from rap_trainer.captured.flat import Allocate, FlatTensors
from rap_trainer.captured.pointwise import Outcome, Targets, block_sums
from rap_trainer.captured.replicated import ReplicatedTables

log = logging.getLogger(__name__)

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class _Delivered(nn.Module):
    """Stands where the tables were and gives their pooled embeddings, which it is called with in place of ids."""

    def __init__(self, keys: Sequence[str], dim: int) -> None:
        super().__init__()
        self._keys, self._widths = list(keys), [dim] * len(keys)

    def forward(self, pooled_BFD: torch.Tensor) -> KeyedTensor:
        return KeyedTensor(self._keys, self._widths, pooled_BFD.flatten(1))


class Apart(NamedTuple):
    """A model apart from its tables."""

    forward: nn.Module
    """logits_B of dense [B, D0] and pooled embeddings [B, F, D]."""
    parameters: list[tuple[nn.Parameter, nn.Parameter]]
    """What its optimizer trains, and what `forward` reads instead: the same memory."""


def without_tables(model: nn.Module, trained: Sequence[nn.Parameter], keys: Sequence[str], dim: int) -> Apart:
    """The model with modules and parameters of its own, over the same memory. Raises ValueError for parameters no module holds.

    The model's own parameters keep nodes of autograd that DDP made on the default stream, which would tie it to a capture.
    """
    modules: dict[int, nn.Module] = {}
    twins: dict[int, nn.Parameter] = {}

    def parameter_of(parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None:
            return None
        return twins.setdefault(id(parameter), nn.Parameter(parameter.detach(), parameter.requires_grad))

    def twin(module: nn.Module | None) -> nn.Module | None:
        if module is None:
            return None
        if isinstance(module, ShardedEmbeddingBagCollection):
            return _Delivered(keys, dim)
        if id(module) not in modules:
            modules[id(module)] = found = copy.copy(module)
            found._parameters = {name: parameter_of(each) for name, each in module._parameters.items()}
            found._modules = {name: twin(each) for name, each in module._modules.items()}
        return modules[id(module)]

    forward = twin(model)
    assert forward is not None
    if any(id(parameter) not in twins for parameter in trained):
        raise ValueError("the model trains parameters that none of its modules holds")
    return Apart(forward, [(parameter, twins[id(parameter)]) for parameter in trained])


class TracedPart:
    """A model's dense part for one batch size. Buffers are allocated once; each step overwrites them."""

    splits = False
    """Rows cannot be taken in parts: statistics may be of all."""

    def __init__(
        self,
        apart: Apart,
        blocks: Blocks,
        *,
        allocate: Allocate,
        num_dense: int,
        precision: str = "tf32",
        tables: ReplicatedTables | None = None,
    ) -> None:
        """`apart`: from `without_tables`. `tables`: those every rank has. Raises ValueError if the model cannot be run so."""
        self.blocks = blocks
        self.dense_width = num_dense
        """Columns of the dense input; none is padding."""
        self._model = apart.forward
        trained, self._parameters = (list(each) for each in zip(*apart.parameters, strict=True))
        device = trained[0].device
        self._device = device
        self._autocast = precision == "bf16"
        pooled = torch.zeros(blocks.batch_size, len(blocks.order), blocks.dim, device=device)
        self._dense, self._pooled = torch.zeros(blocks.batch_size, num_dense, device=device), pooled
        self._check()
        self.flat, self.tables = FlatTensors(trained, allocate=allocate, tables=tables), tables
        for parameter, twin in apart.parameters:
            twin.data = parameter.data
        self._forward: Forward = self._compiled() if device.type == "cuda" else self._plain
        self._share = self._pooled_grad = pooled
        self._present: torch.Tensor | None = None

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What a forward pass may change: statistics of the model's own."""
        return list(self._model.buffers())

    def forward_bottom(self, dense: torch.Tensor) -> None:
        """Keeps dense [B, dense_width] for `forward_loss`: how the model splits further nobody knows."""
        self._dense = dense

    def forward_rows(self, embeddings: Embeddings, rows: slice) -> None:
        """Keeps the embeddings of all rows for `forward_loss`."""
        assert rows == slice(0, self.blocks.batch_size), rows
        self._pooled, self._present = self._gathered(embeddings).requires_grad_(), embeddings.present_BS

    def forward_loss(self, targets: Targets, outcome: Outcome) -> None:
        """Model and loss into `outcome`; after `forward_rows`."""
        rows = torch.arange(self.blocks.batch_size, device=self._device)
        scale_B = torch.where(rows < targets.num_rows, targets.scale, 0.0)
        logits_B, losses_B = self._forward(self._dense, self._pooled, self._present, targets.labels_B, scale_B)
        self._share = losses_B.sum()
        outcome.logits_B.copy_(logits_B.detach())
        outcome.losses_P.copy_(block_sums(losses_B.detach().unsqueeze(1)).view(-1))

    def backward_top(self) -> None:
        """All gradients; after `forward_loss`."""
        self._pooled_grad, *found = torch.autograd.grad(
            self._share, [self._pooled, *self._parameters], allow_unused=True, materialize_grads=True
        )
        torch._foreach_copy_([view for _, view in self.flat.own_views(self.flat.grads)], found)

    def backward_interaction(self, embeddings: Embeddings, *, own: torch.Tensor, peer: torch.Tensor) -> None:
        """The embeddings' gradients, written to `own` and `peer`; after `backward_top`."""
        del embeddings
        grads_BFD, start = self._pooled_grad, 0
        for block_BTD in self._blocks(own, peer):
            count = block_BTD.shape[1]
            block_BTD.copy_(grads_BFD[:, start : start + count])
            start += count

    def early_weight_gradients(self) -> None:
        """Done."""

    def last_weight_gradient(self) -> None:
        """Done."""

    def backward_bottom(self) -> None:
        """Done."""

    def finish_gradients(self) -> None:
        """Done."""

    def _plain(
        self,
        dense: torch.Tensor,
        pooled_BFD: torch.Tensor,
        present_BF: torch.Tensor | None,
        labels_B: torch.Tensor,
        scale_B: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what each row adds to the loss."""
        if present_BF is not None:
            pooled_BFD = pooled_BFD * present_BF.unsqueeze(2)
        with torch.autocast(dense.device.type, torch.bfloat16, enabled=self._autocast):
            logits_B = self._model(dense, pooled_BFD)
        logits_B = logits_B.float()
        losses_B = functional.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
        return logits_B, losses_B * scale_B

    def _check(self) -> None:
        kept = [buffer.clone() for buffer in self.buffers]
        try:
            with torch.no_grad():
                logits_B = self._model(self._dense, self._pooled)
        except Exception as error:  # whatever a model of others raises
            raise ValueError(f"the model cannot be run apart from its tables: {error}") from error
        finally:
            for buffer, before in zip(self.buffers, kept, strict=True):
                buffer.copy_(before)
        rows = self.blocks.batch_size
        if logits_B.shape != (rows,):
            raise ValueError(f"the model gives logits of shape {tuple(logits_B.shape)} for {rows} rows")

    def _compiled(self) -> Forward:
        """The forward through torch.compile, whose backward is compiled with it; as it is where that fails."""
        compiled = cast(Forward, torch.compile(self._plain, dynamic=False))
        dense, pooled = self._dense, self._pooled.clone().requires_grad_()
        kept = [buffer.clone() for buffer in self.buffers]
        try:
            zeros_B = dense.new_zeros(dense.shape[0])
            _, losses_B = compiled(dense, pooled, None, zeros_B, zeros_B)
            torch.autograd.grad(losses_B.sum(), [pooled, *self._parameters], allow_unused=True)
        except Exception as error:  # inductor raises what it likes
            log.warning("the model is captured without torch.compile, which failed: %s", str(error).splitlines()[0])
            return self._plain
        finally:
            for buffer, before in zip(self.buffers, kept, strict=True):
                buffer.copy_(before)
        return compiled

    def _blocks(self, own: torch.Tensor, peer: torch.Tensor) -> list[torch.Tensor]:
        """Embeddings side by side [B, T, D], in the order of the blocks."""
        blocks, found = self.blocks, []
        for run in blocks.runs():
            buffer = own if run.origin is Origin.OWN else peer
            shape, strides = (blocks.batch_size, run.count, blocks.dim), (run.stride, blocks.dim, 1)
            found.append(buffer.as_strided(shape, strides, buffer.storage_offset() + run.offset))
        return found

    def _gathered(self, embeddings: Embeddings) -> torch.Tensor:
        blocks = self._blocks(embeddings.own, embeddings.peer)
        return blocks[0].detach() if len(blocks) == 1 else torch.cat(blocks, 1).detach()
