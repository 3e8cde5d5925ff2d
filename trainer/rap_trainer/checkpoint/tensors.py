"""All tensors of a training state under flat names, and a second copy of them to write from.

    model.…                   parameters and buffers (tables as ShardedTensor)
    tables.…                  state of the tables' optimizers
    dense.…                   state of the dense optimizer
    evaluation.…              sketches of all ranks, equal on every rank

A tensor here shares memory with the training state: loading into it is loading the state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch.distributed import ProcessGroup
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.remote_device import _remote_device

from rap_trainer.model.shard import ShardedModel

Tensors = Mapping[str, torch.Tensor | ShardedTensor]


def training_tensors(model: ShardedModel) -> dict[str, torch.Tensor | ShardedTensor]:
    """Every tensor this rank holds a part of, by name. The optimizers must have made a step, or `begin_state`."""
    named = {f"model.{name}": tensor for name, tensor in model.module.state_dict().items()}
    for name, state in model.module.fused_optimizer.state_dict()["state"].items():
        named.update(_state(f"tables.{name}", state))
    if model.rows is not None:
        for name, state in model.rows.state().items():
            named.update(_state(f"tables.{name}", state))
    if model.dense is not None:
        for name, state in model.dense.state_dict()["state"].items():
            named.update(_state(f"dense.{name}", state))
    named["tables.iterations"] = model.iterations
    return {name: tensor for name, tensor in named.items() if _is_held(tensor)}


def begin_state(model: ShardedModel) -> None:
    """Gives the dense optimizer the state its first step would, to load into; changes the dense parameters."""
    if model.dense is not None:
        model.dense.init_state()
        model.dense.zero_grad(set_to_none=True)


def _state(prefix: str, state: Mapping[str, object]) -> dict[str, torch.Tensor | ShardedTensor]:
    return {f"{prefix}.{key}": value for key, value in state.items() if isinstance(value, torch.Tensor | ShardedTensor)}


def _is_held(tensor: torch.Tensor | ShardedTensor) -> bool:
    return not isinstance(tensor, ShardedTensor) or bool(tensor.local_shards())


def local_parts(tensor: torch.Tensor | ShardedTensor) -> Iterator[torch.Tensor]:
    """What of a tensor lies on this rank."""
    if isinstance(tensor, ShardedTensor):
        yield from (shard.tensor for shard in tensor.local_shards())
    else:
        yield tensor


class Snapshot:
    """A copy of tensors in host memory, its buffers kept: taking it again is one copy per tensor."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._copies: dict[str, torch.Tensor | ShardedTensor] = {}

    @torch.no_grad()
    def take(self, tensors: Tensors) -> Tensors:
        """The copy, valid until the next call. Returns when all of it has arrived."""
        for name in self._copies.keys() - tensors.keys():
            del self._copies[name]
        devices = set()
        for name, tensor in tensors.items():
            if name not in self._copies:
                self._copies[name] = self._buffer(tensor)
            for target, source in zip(local_parts(self._copies[name]), local_parts(tensor), strict=True):
                target.copy_(source, non_blocking=True)
                devices.add(source.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return self._copies

    def _buffer(self, tensor: torch.Tensor | ShardedTensor) -> torch.Tensor | ShardedTensor:
        if not isinstance(tensor, ShardedTensor):
            return _empty(tensor)
        metadata = copy.deepcopy(tensor.metadata())
        for shard in metadata.shards_metadata:
            shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")
        by_offset = {tuple(shard.shard_offsets): shard for shard in metadata.shards_metadata}
        shards = [
            Shard(_empty(shard.tensor), by_offset[tuple(shard.metadata.shard_offsets)])
            for shard in tensor.local_shards()
        ]
        metadata.tensor_properties.pin_memory = any(shard.tensor.is_pinned() for shard in shards)
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, sharded_tensor_metadata=metadata, process_group=self._group
        )


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda and like.numel() > 0)
