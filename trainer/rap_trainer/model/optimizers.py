"""The optimizers a job names, with all their parameters: fused ones of the tables, one of the dense part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torchrec.optim as fused
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from pydantic.alias_generators import to_camel
from rap_contract.job import RAPJobSpec
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.training import Adagrad, Adam, DenseOptimizer, EmbeddingOptimizer, EmbeddingSgd, Sgd

DenseFactory = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]

_FUSED: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": fused.SGD,
    "adagrad": fused.Adagrad,
    "rowwise_adagrad": fused.RowWiseAdagrad,
    "adam": fused.Adam,
    "partial_rowwise_adam": fused.PartialRowWiseAdam,
    "lamb": fused.LAMB,
}
_FUSED_ON_CPU = frozenset({"sgd", "adagrad", "rowwise_adagrad"})
"""FBGEMM 1.6: the only ones its CPU kernels know; they ignore a weight decay (tried 2026-11-29)."""
_IGNORE_DECAY = frozenset({"sgd", "adagrad"})
"""FBGEMM 1.6: kernels without weight decay on a GPU."""


def has_fused_kernel(spec: RAPJobSpec, device: torch.device) -> bool:
    """Whether FBGEMM updates the job's tables as it should in its backward pass on `device`. Raises InvalidDocument."""
    name, chosen = spec.optimizer.embedding.chosen
    decays = bool(chosen.weight_decay)  # type: ignore[attr-defined]  # every one has it
    if device.type == "cpu":
        return name in _FUSED_ON_CPU and not decays and not _has_weighted_means(spec)
    if decays and name in _IGNORE_DECAY:
        place = ("spec", "optimizer", "embedding", to_camel(name), "weightDecay")
        message = "the fused GPU kernel of this optimizer has no weight decay"
        raise InvalidDocument(
            [Problem(path=place, message=message, hint="use rowwiseAdagrad or adam, or leave it out")]
        )
    return True


def _has_weighted_means(spec: RAPJobSpec) -> bool:
    """FBGEMM 1.6's CPU kernels forget to divide the gradient of a mean by the list's length where ids have weights.

    Once a feature has weights all ids have, 1 where the job gives none.
    """
    means = any(feature.table is not None and feature.table.pooling == "mean" for feature in spec.features)
    return means and any(feature.weights is not None for feature in spec.features)


def fused_optimizer(spec: EmbeddingOptimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """TorchRec's optimizer class and its parameters, for `apply_optimizer_in_backward`."""
    name, chosen = spec.chosen
    return _FUSED[name], {"lr": chosen.lr, **_parameters(chosen)}  # type: ignore[attr-defined]  # every one has a rate


def _parameters(chosen: object) -> dict[str, Any]:
    match chosen:
        case Adam():
            betas = {"beta1": chosen.beta1, "beta2": chosen.beta2}
            return {**betas, "eps": chosen.eps, "weight_decay": chosen.weight_decay}
        case Adagrad():
            decay = {"weight_decay": chosen.weight_decay, "weight_decay_mode": WeightDecayMode.L2}
            return {"eps": chosen.eps, **(decay if chosen.weight_decay else {})}
        case EmbeddingSgd():
            return {}
    raise AssertionError(f"no such optimizer: {chosen!r}")


def dense_optimizer(spec: DenseOptimizer) -> DenseFactory:
    """A function from parameters to the optimizer of the dense part."""
    name, chosen = spec.chosen
    match chosen:
        case Sgd():
            return lambda params: torch.optim.SGD(
                params, lr=chosen.lr, momentum=chosen.momentum, weight_decay=chosen.weight_decay
            )
        case Adagrad():
            return lambda params: torch.optim.Adagrad(
                params, lr=chosen.lr, eps=chosen.eps, weight_decay=chosen.weight_decay
            )
        case Adam():
            adam = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            return lambda params: adam(
                params,
                lr=chosen.lr,
                betas=(chosen.beta1, chosen.beta2),
                eps=chosen.eps,
                weight_decay=chosen.weight_decay,
            )
    raise AssertionError(f"no such optimizer: {name}")
