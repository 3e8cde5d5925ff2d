"""Builds the unsharded model a job declares: the built-in DLRM, or what its factory returns.

The embedding tables stay on the meta device; `shard.py` gives them memory.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable
from typing import cast

import torch
from rap_contract.job import RAPJobSpec
from rap_contract.pod import ENV_MODEL_FACTORIES
from rap_contract.problem import InvalidDocument, Problem
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

Factory = Callable[[RAPJobSpec, EmbeddingBagCollection, int], nn.Module]
"""Called with the job's spec, its tables and the number of dense features."""


class DlrmLogits(nn.Module):
    """TorchRec's DLRM, giving logits_B."""

    def __init__(self, dlrm: DLRM) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, dense_BD: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """logits_B."""
        return cast(torch.Tensor, self.dlrm(dense_BD, sparse)).squeeze(1)


def build_model(spec: RAPJobSpec, tables: EmbeddingBagCollection, *, num_dense: int) -> nn.Module:
    """The model on the CPU, equal on every rank for equal seeds. Raises InvalidDocument."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.trainer.seed)
        if spec.model.factory is not None:
            return _from_factory(spec.model.factory, spec, tables, num_dense)
        return _dlrm(spec, tables, num_dense)


def _dlrm(spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    dlrm = spec.model.dlrm
    assert dlrm is not None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # a job without dense features
        return DlrmLogits(
            DLRM(
                embedding_bag_collection=tables,
                dense_in_features=num_dense,
                dense_arch_layer_sizes=list(dlrm.bottom),
                over_arch_layer_sizes=list(dlrm.top),
                dense_device=torch.device("cpu"),
            )
        )


def _from_factory(name: str, spec: RAPJobSpec, tables: EmbeddingBagCollection, num_dense: int) -> nn.Module:
    module_name, _, function_name = name.partition(":")
    place = ("spec", "model", "factory")
    allowed = os.environ.get(ENV_MODEL_FACTORIES)
    if allowed is not None and not _is_allowed(name, allowed):
        hint = f"${ENV_MODEL_FACTORIES} lists what this trainer may import: {allowed or 'nothing'}"
        raise _invalid(place, f"{name!r} is not allowed here", hint)  # before the import, which already runs its code
    try:
        factory = cast(Factory, getattr(importlib.import_module(module_name), function_name))
    except ImportError as error:
        hint = "install the package in the trainer's environment, or set PYTHONPATH"
        raise _invalid(place, f"cannot import {module_name!r}: {error}", hint) from error
    except AttributeError:
        raise _invalid(place, f"{module_name!r} has no {function_name!r}", "write `package.module:function`") from None
    model = factory(spec, tables, num_dense)
    if not isinstance(model, nn.Module):
        raise _invalid(place, f"{name} returned {type(model).__name__}", "return a torch.nn.Module")
    if not any(module is tables for module in model.modules()):
        raise _invalid(place, f"the model of {name} does not hold the tables", "keep the collection it is given")
    return model


def _is_allowed(name: str, allowed: str) -> bool:
    patterns = [pattern.strip() for pattern in allowed.split(",")]
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


def _invalid(path: tuple[str, ...], message: str, hint: str) -> InvalidDocument:
    return InvalidDocument([Problem(path=path, message=message, hint=hint)])
