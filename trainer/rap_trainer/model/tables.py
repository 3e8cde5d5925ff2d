"""The job's embedding tables as TorchRec declares them: on the meta device, without memory until they are sharded."""

from __future__ import annotations

import torch
from rap_contract.graph import FeatureGraph
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.modules.embedding_configs import DataType, PoolingType

_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
_DTYPE = {"float32": DataType.FP32, "float16": DataType.FP16}


def embedding_bag_collection(graph: FeatureGraph) -> EmbeddingBagCollection:
    """One table per name, each with the features that share it. Raises ValueError for a job without tables."""
    if not graph.tables:
        raise ValueError("the model needs at least one sparse feature; give one a `table`")
    features: dict[str, list[str]] = {table.name: [] for table in graph.tables}
    for feature in graph.sparse:
        assert feature.table is not None
        features[feature.table.name].append(feature.name)
    configs = [
        EmbeddingBagConfig(
            name=table.name,
            embedding_dim=table.dim,
            num_embeddings=table.rows,
            feature_names=features[table.name],
            pooling=_POOLING[table.pooling],
            data_type=_DTYPE[table.dtype],
        )
        for table in graph.tables
    ]
    return EmbeddingBagCollection(tables=configs, is_weighted=graph.weighted, device=torch.device("meta"))
