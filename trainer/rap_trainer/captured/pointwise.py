# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The elementwise passes of the dense backward: the loss with the last layer, and ReLU with bias sums.

Both write column sums per block of rows besides their result, so that bias gradients need no
second read; a single reduction over blocks finishes all of them. Twins in plain PyTorch are the
reference and the CPU path. Sums are in a fixed order: the same inputs give the same bits.

B rows, N columns of a layer's output, P blocks of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

ROWS = 32
"""Rows of a block. Measured choice: see docs/performance.md."""
COLUMNS = 128


def num_blocks(rows: int) -> int:
    """P."""
    return -(-rows // ROWS)


@triton.jit
def loss_kernel(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    label_ptr,
    scale_ptr,
    num_rows_ptr,
    logit_ptr,
    loss_ptr,
    grad_hidden_ptr,
    sums_ptr,
    sums_stride,
    hidden_at,
    weight_at,
    bias_at,
    B,
    N,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One block of rows: logits, loss, gradient before the last ReLU, and three column sums. Grid: P."""
    block = tl.program_id(0)
    b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    n = tl.arange(0, BLOCK_N)
    in_row = b < B
    mask = in_row[:, None] & (n < N)[None, :]
    hidden = tl.load(hidden_ptr + b[:, None] * N + n[None, :], mask=mask, other=0.0)
    weight = tl.load(weight_ptr + n, mask=n < N, other=0.0)
    logit = tl.sum(hidden * weight[None, :], axis=1) + tl.load(bias_ptr)
    label = tl.load(label_ptr + b, mask=in_row, other=0.0)
    scale = tl.where(b < tl.load(num_rows_ptr), tl.load(scale_ptr), 0.0)
    tl.store(logit_ptr + b, logit, mask=in_row)
    small = tl.exp(-tl.abs(logit))
    loss = tl.maximum(logit, 0.0) - logit * label + tl.log(1.0 + small)
    probability = tl.where(logit >= 0, 1.0 / (1.0 + small), small / (1.0 + small))
    tl.store(loss_ptr + block, tl.sum(tl.where(scale > 0, loss * scale, 0.0)))
    grad = tl.where(scale > 0, (probability - label) * scale, 0.0)
    grad_hidden = tl.where(hidden > 0, grad[:, None] * weight[None, :], 0.0)
    tl.store(grad_hidden_ptr + b[:, None] * N + n[None, :], grad_hidden, mask=mask)
    row_ptr = sums_ptr + block * sums_stride
    tl.store(row_ptr + hidden_at + n, tl.sum(grad_hidden, axis=0), mask=n < N)
    tl.store(row_ptr + weight_at + n, tl.sum(hidden * grad[:, None], axis=0), mask=n < N)
    tl.store(row_ptr + bias_at, tl.sum(grad))


@triton.jit
def relu_backward_kernel(
    grad_ptr, out_ptr, sums_ptr, sums_stride, sums_at, B, N, BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Masks grad_BN where the layer's output is zero, in place, and sums its columns. Grid: P x column blocks."""
    block = tl.program_id(0)
    b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (b < B)[:, None] & (n < N)[None, :]
    at = b[:, None] * N + n[None, :]
    out = tl.load(out_ptr + at, mask=mask, other=0.0)
    grad = tl.where(out > 0, tl.load(grad_ptr + at, mask=mask, other=0.0), 0.0)
    tl.store(grad_ptr + at, grad, mask=mask)
    tl.store(sums_ptr + block * sums_stride + sums_at + n, tl.sum(grad, axis=0), mask=n < N)


@triton.jit
def bottom_gradient_kernel(
    grad_ptr, out_ptr, direct_ptr, direct_stride, sums_ptr, sums_stride, sums_at, B, N,
    BLOCK_B: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds the direct gradient to grad_BN and masks it, in place, and sums its columns. Grid: P x column blocks."""
    block = tl.program_id(0)
    b = block * BLOCK_B + tl.arange(0, BLOCK_B)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (b < B)[:, None] & (n < N)[None, :]
    at = b[:, None] * N + n[None, :]
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0)
    grad += tl.load(direct_ptr + b[:, None] * direct_stride + n[None, :], mask=mask, other=0.0)
    grad = tl.where(tl.load(out_ptr + at, mask=mask, other=0.0) > 0, grad, 0.0)
    tl.store(grad_ptr + at, grad, mask=mask)
    tl.store(sums_ptr + block * sums_stride + sums_at + n, tl.sum(grad, axis=0), mask=n < N)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Labels of a slot and what a row counts in the loss."""

    labels_B: torch.Tensor
    scale: torch.Tensor
    """[1] float: 1 / rows of all ranks."""
    num_rows: torch.Tensor
    """[1] int32: rows at and past this one are padding, with no loss and no gradient."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a batch is judged by."""

    logits_B: torch.Tensor
    losses_P: torch.Tensor
    """By block of rows: their sum is this rank's share of the loss."""
    loss_share: torch.Tensor
    """[1]: that sum."""
    loss_sum: torch.Tensor
    """[1]: sum of the losses of this rank's rows."""


@dataclass(frozen=True, kw_only=True)
class LossGradients:
    """What the loss pass writes besides."""

    grad_BN: torch.Tensor
    sums_PS: torch.Tensor
    """Column sums of all layers side by side; `hidden_at`, `weight_at` and `bias_at` name the columns."""
    hidden_at: int
    weight_at: int
    bias_at: int


def loss_and_last_layer(
    hidden_BN: torch.Tensor,
    weight_1N: torch.Tensor,
    bias_1: torch.Tensor,
    targets: Targets,
    outcome: Outcome,
    *,
    into: LossGradients,
) -> None:
    """Binary cross entropy of the last layer (N -> 1), its gradient and the layer's own gradient sums."""
    B, N = hidden_BN.shape
    if not hidden_BN.is_cuda or hidden_BN.dtype != torch.float32:
        loss_twin(hidden_BN, weight_1N, bias_1, targets, outcome, into=into)
        return
    loss_kernel[(num_blocks(B),)](
        hidden_BN,
        weight_1N,
        bias_1,
        targets.labels_B,
        targets.scale,
        targets.num_rows,
        outcome.logits_B,
        outcome.losses_P,
        into.grad_BN,
        into.sums_PS,
        into.sums_PS.stride(0),
        into.hidden_at,
        into.weight_at,
        into.bias_at,
        B,
        N,
        BLOCK_B=ROWS,
        BLOCK_N=triton.next_power_of_2(N),
        num_warps=8,
    )


def relu_backward(grad_BN: torch.Tensor, out_BN: torch.Tensor, sums_PS: torch.Tensor, at: int) -> None:
    """Masks `grad_BN` in place where `out_BN` is zero; column sums into `sums_PS[:, at:]`."""
    B, N = grad_BN.shape
    if not grad_BN.is_cuda or grad_BN.dtype != torch.float32:
        grad_BN.mul_(out_BN > 0)
        sums_PS[:, at : at + N] = block_sums(grad_BN)
        return
    grid = (num_blocks(B), triton.cdiv(N, COLUMNS))
    relu_backward_kernel[grid](
        grad_BN, out_BN, sums_PS, sums_PS.stride(0), at, B, N, BLOCK_B=ROWS, BLOCK_N=COLUMNS, num_warps=4
    )


def bottom_gradient(
    grad_BN: torch.Tensor, out_BN: torch.Tensor, direct: torch.Tensor, sums_PS: torch.Tensor, at: int
) -> None:
    """Completes the bottom MLP's gradient: adds columns 0..N-1 of `direct`, masks as `relu_backward` does, sums."""
    B, N = grad_BN.shape
    if not grad_BN.is_cuda or grad_BN.dtype != torch.float32:
        grad_BN.add_(direct[:, :N]).mul_(out_BN > 0)
        sums_PS[:, at : at + N] = block_sums(grad_BN)
        return
    grid = (num_blocks(B), triton.cdiv(N, COLUMNS))
    bottom_gradient_kernel[grid](
        grad_BN, out_BN, direct, direct.stride(0), sums_PS, sums_PS.stride(0), at, B, N,
        BLOCK_B=ROWS, BLOCK_N=COLUMNS, num_warps=4,
    )  # fmt: skip


def sum_losses(outcome: Outcome, targets: Targets) -> None:
    """Fills `outcome.loss_share` and `outcome.loss_sum`; off the critical path."""
    torch.sum(outcome.losses_P, 0, keepdim=True, out=outcome.loss_share)
    torch.div(outcome.loss_share, targets.scale, out=outcome.loss_sum)


def loss_twin(
    hidden_BN: torch.Tensor,
    weight_1N: torch.Tensor,
    bias_1: torch.Tensor,
    targets: Targets,
    outcome: Outcome,
    *,
    into: LossGradients,
) -> None:
    """The loss kernel in plain PyTorch."""
    B, N = hidden_BN.shape
    logits_B = hidden_BN @ weight_1N.view(-1) + bias_1
    labels_B = targets.labels_B.to(logits_B.dtype)
    scale_B = torch.where(torch.arange(B, device=logits_B.device) < targets.num_rows, targets.scale, 0.0)
    losses_B = F.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
    grad_B = ((torch.sigmoid(logits_B) - labels_B) * scale_B).to(logits_B.dtype)
    outcome.logits_B.copy_(logits_B)
    outcome.losses_P.copy_(block_sums((losses_B * scale_B).unsqueeze(1)).view(-1))
    into.grad_BN.copy_(grad_B.unsqueeze(1) * weight_1N.view(1, -1) * (hidden_BN > 0))
    into.sums_PS[:, into.hidden_at : into.hidden_at + N] = block_sums(into.grad_BN)
    into.sums_PS[:, into.weight_at : into.weight_at + N] = block_sums(hidden_BN * grad_B.unsqueeze(1))
    into.sums_PS[:, into.bias_at : into.bias_at + 1] = block_sums(grad_B.unsqueeze(1))


def block_sums(values_BN: torch.Tensor) -> torch.Tensor:
    """[P, N]: sums over each block of rows."""
    rows = values_BN.shape[0]
    padded = F.pad(values_BN, (0, 0, 0, num_blocks(rows) * ROWS - rows))
    return padded.view(num_blocks(rows), ROWS, -1).sum(1)
