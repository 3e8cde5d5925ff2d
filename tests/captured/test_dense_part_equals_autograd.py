"""The hand-written forward and backward against autograd over the same model, in fp64 and fp32."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.dense_part import DensePart, Embeddings, Mlps
from rap_trainer.captured.pointwise import Outcome, Targets, num_blocks
from torch import nn

DIM = 8


def mlp(sizes: list[int], dtype: torch.dtype) -> list[nn.Linear]:
    return [nn.Linear(a, b, dtype=dtype) for a, b in pairwise(sizes)]


def model(num_sparse: int, num_dense: int, dtype: torch.dtype) -> Mlps:
    columns = DIM + (num_sparse + 1) * num_sparse // 2
    return Mlps(bottom=mlp([num_dense, 12, DIM], dtype), top=mlp([columns, 16, 10, 6, 1], dtype))


def autograd(
    mlps: Mlps, dense: torch.Tensor, embeddings_BFD: torch.Tensor, labels: torch.Tensor, rows: int
) -> torch.Tensor:
    x = dense
    for layer in mlps.bottom:
        x = layer(x).relu()
    features = torch.cat([x.unsqueeze(1), embeddings_BFD], 1)
    upper = torch.triu_indices(features.shape[1], features.shape[1], 1)
    y = torch.cat([x, (features @ features.transpose(1, 2))[:, upper[0], upper[1]]], 1)
    for layer in mlps.top[:-1]:
        y = layer(y).relu()
    logits = mlps.top[-1](y).squeeze(1)
    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return losses[:rows].sum() / 100


def buffers(blocks: Blocks, embeddings_BFD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Own block and peers' blocks as an exchange would deliver them."""
    peer = torch.zeros(blocks.world_size * blocks.block_elements, dtype=embeddings_BFD.dtype)
    own = torch.zeros(0)
    for owner, (start, count) in enumerate(zip(blocks.starts, blocks.counts, strict=True)):
        block = embeddings_BFD[:, list(blocks.order[start : start + count])].reshape(-1)
        if owner == blocks.rank:
            own = block.clone()
        peer[owner * blocks.block_elements :][: block.numel()] = block
    return own, peer


def unpacked(blocks: Blocks, own: torch.Tensor, peer: torch.Tensor) -> torch.Tensor:
    parts: dict[int, torch.Tensor] = {}
    for owner, (start, count) in enumerate(zip(blocks.starts, blocks.counts, strict=True)):
        size = blocks.batch_size * count * blocks.dim
        block = own if owner == blocks.rank else peer[owner * blocks.block_elements :][:size]
        for t, values in enumerate(block.view(blocks.batch_size, count, blocks.dim).unbind(1)):
            parts[blocks.order[start + t]] = values
    return torch.stack([parts[f] for f in range(len(parts))], 1)


@pytest.mark.parametrize(
    ("order", "counts", "rank"),
    [((0, 1, 2), (3,), 0), ((2, 0, 3, 1, 4), (2, 3), 1), ((4, 2, 0, 1, 3, 5), (1, 3, 2), 0)],
    ids=["one-rank", "two-ranks", "three-ranks"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients_and_loss_equal_autograds(
    order: tuple[int, ...], counts: tuple[int, ...], rank: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    B, num_dense, rows = 37, 5, 33
    blocks = Blocks(order=order, counts=counts, rank=rank, batch_size=B, dim=DIM)
    mlps = model(len(order), num_dense, dtype)
    dense, labels = torch.randn(B, num_dense, dtype=dtype), (torch.rand(B) < 0.4).to(dtype)
    embeddings = torch.randn(B, len(order), DIM, dtype=dtype, requires_grad=True)
    expected = autograd(mlps, dense, embeddings, labels, rows)
    parameters = [p for layer in (*mlps.bottom, *mlps.top) for p in (layer.weight, layer.bias)]
    grads = torch.autograd.grad(expected, [embeddings, *parameters])

    part = DensePart(mlps, blocks, allocate=lambda size: torch.zeros(size, dtype=dtype))
    own, peer = buffers(blocks, embeddings.detach())
    targets = Targets(
        labels_B=labels, scale=torch.tensor([0.01], dtype=dtype), num_rows=torch.tensor([rows], dtype=torch.int32)
    )
    outcome = Outcome(
        logits_B=torch.zeros(B, dtype=dtype),
        losses_P=torch.zeros(num_blocks(B), dtype=dtype),
        loss_share=torch.zeros(1),
        loss_sum=torch.zeros(1),
    )
    padded = torch.zeros(B, part.dense_width, dtype=dtype)
    padded[:, :num_dense] = dense
    part.forward_bottom(padded)
    for part_of_rows in (slice(0, 3), slice(3, blocks.batch_size)):
        part.forward_rows(Embeddings(own=own, peer=peer), part_of_rows)
    part.forward_loss(targets, outcome)
    grad_own, grad_peer = torch.full_like(own, torch.nan), torch.full_like(peer, torch.nan)
    part.backward_top()
    part.early_weight_gradients()
    part.last_weight_gradient()
    part.backward_interaction(Embeddings(own=own, peer=peer), own=grad_own, peer=grad_peer)
    part.backward_bottom()
    part.finish_gradients()

    rtol, atol = (1e-10, 1e-12) if dtype == torch.float64 else (1e-4, 1e-6)
    torch.testing.assert_close(outcome.losses_P.sum(), expected.detach(), rtol=rtol, atol=atol)
    torch.testing.assert_close(unpacked(blocks, grad_own, grad_peer), grads[0], rtol=rtol, atol=atol)
    for (parameter, view), reference in zip(part.flat.views(part.flat.grads), grads[1:], strict=True):
        assert view.shape == parameter.shape
        torch.testing.assert_close(view, reference, rtol=rtol, atol=atol)


def test_padding_of_the_flat_buffers_stays_zero() -> None:
    mlps = model(3, 5, torch.float64)
    blocks = Blocks(order=(0, 1, 2), counts=(3,), rank=0, batch_size=4, dim=DIM)
    part = DensePart(mlps, blocks, allocate=lambda size: torch.zeros(size, dtype=torch.float64))
    values = part.flat.values.clone()
    for _, view in part.flat.views(values):
        view.zero_()
    assert values.count_nonzero() == 0
    assert part.flat.is_adopted()
    mlps.top[0].weight.data = mlps.top[0].weight.data.clone()
    assert not part.flat.is_adopted()


def test_a_model_the_dense_part_cannot_hold_is_refused() -> None:
    mlps = model(3, 5, torch.float32)
    with pytest.raises(ValueError, match="hidden layer"):
        replace(mlps, top=mlps.top[-1:])
    blocks = Blocks(order=(0, 1), counts=(2,), rank=0, batch_size=4, dim=DIM)
    with pytest.raises(ValueError, match="takes 14 columns, got 11"):
        DensePart(mlps, blocks, allocate=torch.zeros)
