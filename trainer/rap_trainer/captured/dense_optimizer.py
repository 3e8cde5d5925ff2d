# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Dense optimizers over the flat buffers: one kernel a step, nothing a CUDA graph would bake.

Each computes what `torch.optim` of the same name computes. The step count of Adam lives on the
device and advances inside the graph. State tensors are views into flat buffers of the parameters'
layout, handed to the job's own torch optimizer, so that a checkpoint holds one form whichever runtime wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rap_trainer.captured.flat import FlatParameters, FlatTensors

BLOCK = 1024
KINDS = ("sgd", "adagrad", "adam", "adamw")


@dataclass(frozen=True, kw_only=True)
class DenseRule:
    """Which update, with which constants; names and defaults as in `torch.optim`."""

    kind: str
    lr: float
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown dense optimizer {self.kind!r}, one of {', '.join(KINDS)}")

    @property
    def num_states(self) -> int:
        """Buffers of state the rule keeps."""
        return {"sgd": int(self.momentum > 0), "adagrad": 1, "adam": 2, "adamw": 2}[self.kind]

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names `torch.optim` gives those buffers."""
        names = {"sgd": ("momentum_buffer",), "adagrad": ("sum",)}.get(self.kind, ("exp_avg", "exp_avg_sq"))
        return names[: self.num_states]


def rule_of(optimizer: torch.optim.Optimizer) -> DenseRule:
    """The rule of a torch optimizer. Raises ValueError for one that has no flat form, with the reason."""
    if len(optimizer.param_groups) != 1:
        raise ValueError(f"one parameter group, got {len(optimizer.param_groups)}")
    group = optimizer.param_groups[0]
    kind = type(optimizer).__name__.lower()
    for option in ("nesterov", "amsgrad", "maximize", "dampening", "lr_decay"):
        if group.get(option):
            raise ValueError(f"option {option} of {type(optimizer).__name__} has no captured form")
    betas = group.get("betas", (0.9, 0.999))
    return DenseRule(
        kind=kind,
        lr=float(group["lr"]),
        momentum=float(group.get("momentum", 0.0)),
        beta1=float(betas[0]),
        beta2=float(betas[1]),
        eps=float(group.get("eps", 1e-8)),
        weight_decay=float(group.get("weight_decay", 0.0)),
    )


@triton.jit
def update_kernel(
    value_ptr,
    grad_ptr,
    first_ptr,
    second_ptr,
    correction_ptr,
    size,
    lr,
    beta1,
    new1,
    beta2,
    new2,
    eps,
    decay,
    keep,
    KIND: tl.constexpr,
    MOMENTUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One optimizer step over the flat buffers. `beta1` is the momentum of sgd. Grid: size / BLOCK.

    `new1`, `new2`: 1 - beta; `keep`: what adamw leaves of a value. All from the host's double precision: 1 - 0.999 in single precision
    is 1.3e-5 off, and with it Adam's second moment and, always to the same side, half as much its every step.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    value = tl.load(value_ptr + at, mask=mask, other=0.0)
    grad = tl.load(grad_ptr + at, mask=mask, other=0.0)
    if KIND == "adamw":
        value = value * keep
    else:
        grad = grad + decay * value
    if KIND == "sgd":
        change = grad
        if MOMENTUM:
            change = beta1 * tl.load(first_ptr + at, mask=mask, other=0.0) + grad
            tl.store(first_ptr + at, change, mask=mask)
        value = value - lr * change
    elif KIND == "adagrad":
        total = tl.load(first_ptr + at, mask=mask, other=0.0) + grad * grad
        tl.store(first_ptr + at, total, mask=mask)
        value = value - tl.where(grad == 0.0, 0.0, lr * grad / (tl.sqrt_rn(total) + eps))
    else:
        mean = beta1 * tl.load(first_ptr + at, mask=mask, other=0.0) + new1 * grad
        square = beta2 * tl.load(second_ptr + at, mask=mask, other=0.0) + new2 * grad * grad
        tl.store(first_ptr + at, mean, mask=mask)
        tl.store(second_ptr + at, square, mask=mask)
        correction1 = tl.load(correction_ptr).to(tl.float32)
        correction2 = tl.load(correction_ptr + 1).to(tl.float32)
        scale = tl.sqrt_rn(square / correction2) + eps
        value = value - tl.where(mean == 0.0, 0.0, lr / correction1 * mean / scale)
    tl.store(value_ptr + at, value, mask=mask)


class FlatOptimizer:
    """The update of a rule on flat parameters, with its state."""

    def __init__(self, rule: DenseRule, flat: FlatParameters | FlatTensors) -> None:
        self.rule = rule
        self.flat = flat
        self.states = [torch.zeros_like(flat.values) for _ in range(rule.num_states)]
        device = flat.values.device
        self.step = torch.zeros(1, dtype=flat.values.dtype, device=device)
        self._betas = torch.tensor([rule.beta1, rule.beta2], dtype=torch.float64, device=device)
        self._corrections = torch.ones_like(self._betas)
        """1 - beta^step in double precision, as torch has it: in single, one of 0.001 is off by 3e-5, and so is Adam's first step."""

    def begin(self) -> None:
        """Counts the step, long before `update` needs the count."""
        self.step += 1
        if self.rule.kind in ("adam", "adamw"):
            torch.pow(self._betas, self.step.double(), out=self._corrections)
            self._corrections.neg_().add_(1)

    def update(self, part: slice = slice(None)) -> None:
        """One step of these elements from the flat gradients; after `begin`."""
        if not self.flat.values.is_cuda or self.flat.values.dtype != torch.float32:
            self._update_twin(part)
        else:
            self._update_kernel(part)

    def _update_kernel(self, part: slice) -> None:
        rule, values = self.rule, self.flat.values[part]
        first = self.states[0][part] if self.states else values
        second = self.states[1][part] if len(self.states) > 1 else values
        update_kernel[(triton.cdiv(values.numel(), BLOCK),)](
            values,
            self.flat.grads[part],
            first,
            second,
            self._corrections,
            values.numel(),
            rule.lr,
            rule.momentum if rule.kind == "sgd" else rule.beta1,
            1 - rule.beta1,
            rule.beta2,
            1 - rule.beta2,
            rule.eps,
            rule.weight_decay,
            1 - rule.lr * rule.weight_decay,
            KIND=rule.kind,
            MOMENTUM=rule.momentum > 0,
            BLOCK=BLOCK,
            num_warps=4,
        )

    def _update_twin(self, part: slice) -> None:
        rule, values = self.rule, self.flat.values[part]
        states = [state[part] for state in self.states]
        grad = self.flat.grads[part].to(values.dtype)
        if rule.kind == "adamw":
            values.mul_(1 - rule.lr * rule.weight_decay)
        elif rule.weight_decay:
            grad = grad + rule.weight_decay * values
        if rule.kind == "sgd":
            if rule.momentum:
                grad = states[0].mul_(rule.momentum).add_(grad)
            values.sub_(rule.lr * grad)
        elif rule.kind == "adagrad":
            change = rule.lr * grad / (states[0].addcmul_(grad, grad).sqrt() + rule.eps)
            values.sub_(torch.where(grad == 0, 0, change))
        else:
            mean = states[0].lerp_(grad, 1 - rule.beta1)
            square = states[1].mul_(rule.beta2).addcmul_(grad, grad, value=1 - rule.beta2)
            correction1, correction2 = self._corrections.to(values.dtype)
            scale = (square / correction2).sqrt() + rule.eps
            change = rule.lr / correction1 * mean / scale
            values.sub_(torch.where(mean == 0, 0, change))

    def load_from(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes over a torch optimizer's state (after a resume) and shares these buffers with it."""
        for name, state in zip(self.rule.state_names, self.states, strict=True):
            for parameter, view in self.flat.views(state):
                held = optimizer.state[parameter].get(name)
                if held is not None:
                    view.copy_(held)
                optimizer.state[parameter][name] = view
        steps = [s["step"] for p, _ in self.flat.views(self.flat.values) if "step" in (s := optimizer.state[p])]
        if steps:
            self.step.fill_(float(steps[0]))

    def publish_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Writes the step count where a checkpoint of the torch optimizer looks for it. Synchronises."""
        if self.rule.kind == "sgd":
            return
        count = float(self.step)
        for parameter, _ in self.flat.views(self.flat.values):
            optimizer.state[parameter]["step"] = torch.tensor(count)
