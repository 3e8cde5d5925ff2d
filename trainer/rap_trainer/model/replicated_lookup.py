"""Looks up tables of which every rank has a copy, in the place of FBGEMM's dense kernel: by PyTorch's own embedding bag, in both runtimes.

FBGEMM 1.6's dense backward has no kernel for an H200 ("device kernel image is invalid", CUDA 13.0, 2026-11-30), and on a CPU it forgets
the length of a weighted mean. Reads nothing on the host, so that a CUDA graph may hold it. Not here: averaging the gradients
over the ranks, and the update.

T features, B rows, N ids, D dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen, PoolingMode
from torch import nn
from torch.nn import functional as F
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """Tables of one dim, one behind the other in `module.weights`."""

    module: DenseTableBatchedEmbeddingBagsCodegen
    dim: int
    first_rows_T: torch.Tensor
    """Where each feature's table begins, in rows."""

    def __call__(
        self, indices: torch.Tensor, offsets: torch.Tensor, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Pooled embeddings [B, T * D] of `indices` [N], which `offsets` [T * B + 1] part, all of them."""
        T = self.first_rows_T.numel()
        weights_RD: torch.Tensor = self.module.weights.view(-1, self.dim)
        B = (offsets.numel() - 1) // T
        if B == 0:
            return weights_RD[:0].reshape(0, T * self.dim)
        places_N = torch.arange(indices.numel(), device=indices.device)
        features_N = torch.searchsorted(offsets[::B].contiguous(), places_N, right=True).sub_(1).clamp_(max=T - 1)
        pooled_ED = F.embedding_bag(
            indices + self.first_rows_T[features_N],
            weights_RD,
            offsets,
            mode="sum",
            per_sample_weights=None if per_sample_weights is None else per_sample_weights.to(weights_RD.dtype),
            include_last_offset=True,
        )
        if self.module.pooling_mode is PoolingMode.MEAN:
            pooled_ED = pooled_ED / offsets.diff().clamp(min=1).unsqueeze(1)
        return pooled_ED.view(T, B, self.dim).transpose(0, 1).reshape(B, T * self.dim)


def look_up_copies(lookup: nn.Module) -> None:
    """Puts it into TorchRec's lookup of such tables, which are of one dim."""
    for part in lookup.modules():
        if isinstance(part, BatchedDenseEmbeddingBag):
            kernel = part.emb_module
            (dim,) = {dim for _, dim in kernel.embedding_specs}
            kernel.forward = Lookup(module=kernel, dim=dim, first_rows_T=kernel.hash_size_cumsum[:-1])
