"""The step's Triton kernels against their twins in plain PyTorch: on a GPU, or interpreted on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rap_trainer.captured import dense_optimizer as optimizers
from rap_trainer.captured import narrow_interaction as narrow
from rap_trainer.captured import pointwise, tile
from rap_trainer.captured import wide_interaction as wide
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.flat import FlatParameters
from rap_trainer.captured.interaction import interaction_forward
from torch import nn

DIM = 16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []  # interpreted, a kernel's scalars are Python's doubles


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    with DEVICE:
        yield


FEW = Blocks(order=(2, 0, 3, 1, 4), counts=(2, 3), rank=0, batch_size=3, dim=DIM)
MANY = Blocks(order=tuple((7 * f) % 36 for f in range(36)), counts=(9, 27), rank=1, batch_size=2, dim=DIM)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("optional", [False, True], ids=["all-present", "some-absent"])
@pytest.mark.parametrize(
    ("kind", "blocks"), [("narrow", FEW), ("wide", FEW), ("wide", MANY)], ids=["narrow", "wide-few", "wide-many"]
)
def test_interaction_kernels(kind: str, blocks: Blocks, optional: bool, precision: str) -> None:
    torch.manual_seed(0)
    map_ = tile.TileMap.of(blocks, DEVICE, by_position=kind == "wide")
    B, S = blocks.batch_size, len(blocks.order)
    present = (torch.rand(B, S) < 0.6).to(torch.int8) if optional else None
    bottom = torch.randn(B, DIM).relu()
    own, peer = torch.randn(B * blocks.own_width), torch.randn(2 * blocks.block_elements)
    expected, out = torch.zeros(B, map_.padded_columns), torch.zeros(B, map_.padded_columns)
    tile.forward_twin(bottom, own, peer, expected, map_, present_BS=present)
    places = (map_.origin_T, map_.offset_T, map_.stride_T)
    sizes_of_rows = (B, map_.num_features)
    all_places = (map_.position_T, *places) if kind == "narrow" else (*places, map_.place_T)
    rows, rows_of_out = (*all_places, *sizes_of_rows), (*all_places, 0, *sizes_of_rows)
    sizes: dict[str, Any] = {"D": DIM, "PRECISION": precision, "MASKED": optional}
    close: dict[str, Any] = {} if precision == "ieee" else {"rtol": 0.0, "atol": 2e-2}
    stages = {"STAGES": 1}
    forward, backward, programs = narrow.narrow_forward_kernel, narrow.narrow_backward_kernel, 2
    if kind == "narrow":
        sizes |= {"TILE": 16, "TURNS": 2}
    else:
        forward, backward = wide.wide_forward_kernel, wide.wide_backward_kernel
        sizes |= {"BLOCK": 16, "BLOCKS": -(-map_.num_features // 16)}
        programs = B * sizes["BLOCKS"]
    held = bottom if present is None else present
    more = stages if kind == "narrow" else {}
    forward[(programs,)](bottom, own, peer, held, out, *rows_of_out, out.stride(0), **sizes, **more)
    torch.testing.assert_close(out, expected, **close)

    grad = torch.randn(B, map_.padded_columns)
    twin = tile.TileGradients(
        bottom_BD=torch.zeros(B, DIM), own=torch.full_like(own, 7.0), peer=torch.full_like(peer, 7.0)
    )
    tile.backward_twin(bottom, own, peer, grad, map_, into=twin, present_BS=present)
    into = [torch.zeros(B, DIM), torch.full_like(own, 7.0), torch.full_like(peer, 7.0)]
    backward[(programs,)](bottom, own, peer, held, grad, *into, *rows, grad.stride(0), **sizes, **stages)
    for got, reference in zip(into, (twin.bottom_BD, twin.own, twin.peer), strict=True):
        torch.testing.assert_close(got, reference, **close)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter multiplies in fp32")
@pytest.mark.parametrize("num_sparse", [27, 40], ids=["narrow", "wide"])
def test_products_in_tf32_are_neither_too_small_nor_too_large_on_average(num_sparse: int) -> None:
    torch.manual_seed(4)
    blocks = Blocks(order=tuple(range(num_sparse)), counts=(num_sparse,), rank=0, batch_size=256, dim=128)
    map_ = tile.TileMap.of(blocks, DEVICE)
    bottom, own = torch.rand(256, 128) + 0.1, torch.rand(256 * blocks.own_width) + 0.1
    got, exact = torch.zeros(256, map_.padded_columns), torch.zeros(256, map_.padded_columns, dtype=torch.float64)
    interaction_forward(bottom, own, own, got, map_, rows=slice(0, 256))
    tile.forward_twin(bottom.double(), own.double(), own.double(), exact, map_)
    pairs = slice(map_.dim, map_.num_columns)
    assert abs(float((got.double() / exact)[:, pairs].mean()) - 1) < 1e-4


@pytest.mark.parametrize("rows", [1, 32, 45], ids=lambda rows: f"{rows}-rows")
def test_loss_kernel(rows: int) -> None:
    torch.manual_seed(1)
    kernels = pointwise
    B, N = rows, 20
    hidden, weight, bias = torch.randn(B, N).relu() * 8, torch.randn(1, N), torch.randn(1)
    targets = pointwise.Targets(
        labels_B=(torch.rand(B) < 0.5).float(),
        scale=torch.tensor([0.02]),
        num_rows=torch.tensor([max(1, B - 3)], dtype=torch.int32),
    )
    P, S = pointwise.num_blocks(B), 64

    def fresh() -> tuple[pointwise.Outcome, pointwise.LossGradients]:
        return pointwise.Outcome(
            logits_B=torch.zeros(B), losses_P=torch.zeros(P), loss_share=torch.zeros(1), loss_sum=torch.zeros(1)
        ), pointwise.LossGradients(
            grad_BN=torch.zeros(B, N), sums_PS=torch.zeros(P, S), hidden_at=0, weight_at=24, bias_at=48
        )

    (twin, twin_grads), (got, grads) = fresh(), fresh()
    pointwise.loss_twin(hidden, weight, bias, targets, twin, into=twin_grads)
    kernels.loss_kernel[(P,)](
        hidden, weight, bias, targets.labels_B, targets.scale, targets.num_rows, got.logits_B, got.losses_P,
        grads.grad_BN, grads.sums_PS, S, 0, 24, 48, B, N, BLOCK_B=pointwise.ROWS, BLOCK_N=32,
    )  # fmt: skip
    for a, b in (
        (got.logits_B, twin.logits_B),
        (got.losses_P, twin.losses_P),
        (grads.grad_BN, twin_grads.grad_BN),
        (grads.sums_PS, twin_grads.sums_PS),
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_relu_backward_and_bottom_gradient_kernels() -> None:
    torch.manual_seed(2)
    kernels = pointwise
    B, N, S = 45, 150, 200
    out, grad = torch.randn(B, N).relu(), torch.randn(B, N)
    P = pointwise.num_blocks(B)
    grid = (P, -(-N // pointwise.COLUMNS))
    twin, twin_sums, sums = grad.clone(), torch.zeros(P, S), torch.zeros(P, S)
    pointwise.relu_backward(twin, out, twin_sums, 8)
    sizes = {"BLOCK_B": pointwise.ROWS, "BLOCK_N": pointwise.COLUMNS}
    kernels.relu_backward_kernel[grid](grad, out, sums, S, 8, B, N, **sizes)
    torch.testing.assert_close(grad, twin)
    torch.testing.assert_close(sums, twin_sums)
    direct, twin = torch.randn(B, N + 3), grad.clone()
    pointwise.bottom_gradient(twin.clone() if DEVICE.type == "cuda" else twin, out, direct, twin_sums, 8)
    kernels.bottom_gradient_kernel[grid](grad, out, direct, direct.stride(0), sums, S, 8, B, N, **sizes)
    torch.testing.assert_close(sums, twin_sums)
    if DEVICE.type == "cpu":
        torch.testing.assert_close(grad, twin)


RULES = [
    optimizers.DenseRule(kind="sgd", lr=0.1, weight_decay=0.01),
    optimizers.DenseRule(kind="sgd", lr=0.1, momentum=0.9),
    optimizers.DenseRule(kind="adagrad", lr=0.05, eps=1e-8),
    optimizers.DenseRule(kind="adam", lr=0.01, weight_decay=0.1),
    optimizers.DenseRule(kind="adamw", lr=0.01, weight_decay=0.1),
]
TORCH = {
    "sgd": lambda p, r: torch.optim.SGD(p, lr=r.lr, momentum=r.momentum, weight_decay=r.weight_decay),
    "adagrad": lambda p, r: torch.optim.Adagrad(p, lr=r.lr, eps=r.eps, weight_decay=r.weight_decay),
    "adam": lambda p, r: torch.optim.Adam(p, lr=r.lr, eps=r.eps, weight_decay=r.weight_decay),
    "adamw": lambda p, r: torch.optim.AdamW(p, lr=r.lr, eps=r.eps, weight_decay=r.weight_decay),
}


def linears() -> list[nn.Linear]:
    torch.manual_seed(3)
    return [nn.Linear(5, 6), nn.Linear(6, 1)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.momentum}")
def test_a_hundred_flat_updates_equal_torchs(rule: optimizers.DenseRule) -> None:
    flat = FlatParameters(linears(), [8, 6], allocate=torch.zeros, early=[0])
    mine = optimizers.FlatOptimizer(rule, flat)
    references = linears()
    parameters = [p for layer in references for p in (layer.weight, layer.bias)]
    theirs = TORCH[rule.kind](parameters, rule)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert optimizers.rule_of(theirs) == rule
    starts = [parameter.detach().clone() for parameter in parameters]
    for done in range(100):
        for parameter, (_, view) in zip(parameters, flat.views(flat.grads), strict=True):
            parameter.grad = torch.randn_like(parameter)
            view.copy_(parameter.grad)
        mine.begin()
        mine.update(flat.early)
        mine.update(flat.late)
        theirs.step()
        if not done:  # Adam's first step is as exact as torch's: corrections of 0.1 and 0.001 lose nothing
            for parameter, start, (_, view) in zip(parameters, starts, flat.views(flat.values), strict=True):
                moved, expected = view - start, parameter.detach() - start
                torch.testing.assert_close(moved, expected, rtol=3e-6, atol=6e-8)
    for parameter, (_, view) in zip(parameters, flat.views(flat.values), strict=True):
        torch.testing.assert_close(view, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.momentum}")
def test_update_kernel_equals_its_twin(rule: optimizers.DenseRule) -> None:
    """In values and state, to the last bits: a constant off by 1e-5 moves every element to the same side, which adds up."""
    flats = [FlatParameters(linears(), [8, 6], allocate=torch.zeros) for _ in range(2)]
    twin, mine = (optimizers.FlatOptimizer(rule, flat) for flat in flats)
    for _ in range(3):
        for (_, view), (_, other) in zip(*(flat.views(flat.grads) for flat in flats), strict=True):
            other.copy_(view.normal_())
        starts = [flat.values.clone() for flat in flats]
        for optimizer in (twin, mine):
            optimizer.begin()
        twin._update_twin(slice(None))
        mine._update_kernel(slice(None))
        moved = [flat.values - start for flat, start in zip(flats, starts, strict=True)]
        torch.testing.assert_close(moved[1], moved[0], rtol=1e-6, atol=1e-7)
        for name, state, expected in zip(rule.state_names, mine.states, twin.states, strict=True):
            sums_squares = name in ("sum", "exp_avg_sq")
            torch.testing.assert_close(state, expected, rtol=1e-6, atol=1e-10 if sums_squares else 1e-7)


def test_state_is_shared_with_the_torch_optimizer_both_ways() -> None:
    layers = linears()
    theirs = torch.optim.Adagrad([p for layer in layers for p in (layer.weight, layer.bias)], lr=0.05)
    for group in theirs.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    theirs.step()
    flat = FlatParameters(layers, [8, 6], allocate=torch.zeros)
    mine = optimizers.FlatOptimizer(optimizers.rule_of(theirs), flat)
    mine.load_from(theirs)
    assert float(mine.step) == 1
    flat.grads.fill_(2.0)
    mine.begin()
    mine.update()
    mine.publish_step(theirs)
    state = theirs.state_dict()["state"][0]
    assert float(state["step"]) == 2
    torch.testing.assert_close(state["sum"], torch.full((6, 5), 5.0))


def test_an_optimizer_without_a_flat_form_is_refused_with_the_reason() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="amsgrad of Adam has no captured form"):
        optimizers.rule_of(torch.optim.Adam([parameter], amsgrad=True))
    with pytest.raises(ValueError, match="unknown dense optimizer 'rprop'"):
        optimizers.rule_of(torch.optim.Rprop([parameter], lr=0.1))
