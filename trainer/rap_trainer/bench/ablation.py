"""The first rung of the ablation: TorchRec's own modules under autograd, captured, inputs distributed statically.

What a CUDA graph alone brings: no kernel of ours, NCCL for every exchange. An absent feature reads row 0 here, which
costs the same and learns slightly otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.models.dlrm import DLRM

from rap_trainer.bench.subject import Subject
from rap_trainer.captured.exchange import LocalExchange
from rap_trainer.captured.input_dist import OneHotInputs, ownership_of
from rap_trainer.captured.nccl_exchange import NcclExchange
from rap_trainer.model.shard import ShardedModel
from rap_trainer.world import World


def captured_modules(model: ShardedModel, subject: Subject, world: World) -> Callable[[], None]:
    """The captured stock step; inputs are in place."""
    modules = list(model.module.modules())
    dlrm: Any = next(module for module in modules if isinstance(module, DLRM))
    sharded: Any = next(module for module in modules if isinstance(module, ShardedEmbeddingBagCollection))
    names = tuple(dlrm.sparse_arch.sparse_feature_names)
    ownership = ownership_of(sharded)
    B = subject.batch_size
    blocks = ownership.blocks(names, rank=world.rank, batch_size=B, dim=dlrm.sparse_arch.D)
    alone = world.size == 1
    exchange = LocalExchange(blocks, world.device) if alone else NcclExchange(blocks, world.device, world.data_group)
    inputs = OneHotInputs(ownership.owned[world.rank], exchange.ids(0), rows=B * world.size)
    batch = subject.ready[0]
    ids_FB = torch.zeros(len(names), B, dtype=torch.int64, device=world.device)
    ids_FB.view(-1)[batch.sparse.lengths().bool()] = batch.sparse.values()
    ids_FB = ids_FB[list(blocks.order)]
    dlrm.inter_arch.triu_indices = dlrm.inter_arch.triu_indices.to(world.device)
    parameters = [p for part in (dlrm.dense_arch, dlrm.over_arch) for p in _own_parameters(part)]
    gradients = [torch.zeros_like(parameter) for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    context = sharded.create_context()
    sharded.input_dist(context, batch.sparse).wait().wait()  # what the output dist must know of the batch

    def step() -> None:
        torch._foreach_zero_(gradients)
        exchange.send_ids(ids_FB, 0)
        pooled = sharded.compute_and_output_dist(context, inputs.features).wait().to_dict()
        looked_up = torch.cat([pooled[name] for name in names], 1)
        sparse_BFD = looked_up.view(B, len(names), -1)
        logits_B = dlrm.over_arch(dlrm.inter_arch(dlrm.dense_arch(batch.dense_BD), sparse_BFD)).squeeze(1)
        F.binary_cross_entropy_with_logits(logits_B, batch.labels_B).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if not alone:
            flat = torch.cat([gradient.view(-1) for gradient in gradients])
            dist.all_reduce(flat)
            flat /= world.size
            parts = flat.split([p.numel() for p in parameters])  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch._foreach_copy_(gradients, [x.view_as(p) for x, p in zip(parts, parameters, strict=True)])
        optimizer.step()

    stream = torch.cuda.Stream(world.device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def _own_parameters(part: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module as new ones over the same memory.

    The old ones keep their gradients' nodes, which DDP's hooks made on the default stream: adding to a gradient there
    would tie that stream to the capture, which CUDA refuses.
    """
    found: list[nn.Parameter] = []
    for module in part.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach()))
            found.append(getattr(module, name))
    return found
