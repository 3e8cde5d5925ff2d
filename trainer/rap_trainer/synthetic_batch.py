"""Random batches with the columns of a job: list lengths, nulls and value ranges as events have them.

For tests and benchmarks of preprocessing; the events a model can learn from come from `rap produce`.
Shapes: B rows, N elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument
from rap_contract.types import Dtype, ValueType

from rap_trainer.batch import Column, RawBatch

MEAN_LENGTH = "rap.dev/mean-list-length"
"""Annotation of a job: mean length of its synthetic lists; 1 without it."""
MAX_LENGTH = 100  # longest list of plan 4 (SEMANTICS)
SIGMA = 1.0  # of the logarithm of a list's length: a tail about as long as the paper's production data has
NULL_RATIO = 0.1  # of rows; about the share of missing values in Criteo
CLICK_RATIO = 0.028  # of the real Criteo Terabyte rows in shared/data


def synthetic_batch(
    job: dict[str, Any], num_rows: int, *, seed: int = 0, device: str | torch.device = "cpu"
) -> RawBatch:
    """A batch of a job's columns, equal for equal arguments on one kind of device. Raises InvalidDocument."""
    parsed = RAPJob.model_validate(job)
    graph, problems = compile_features(parsed.spec)
    if graph is None:
        raise InvalidDocument(problems)
    mean_length = float(parsed.metadata.annotations.get(MEAN_LENGTH, "1"))
    maker = _Maker(num_rows, mean_length, torch.Generator(device).manual_seed(seed))
    follows = followers(graph)
    columns: dict[str, Column] = {}
    for name in dict.fromkeys((*graph.inputs, graph.label)):
        if name == graph.label:
            columns[name] = maker.label(graph.columns[name])
        elif name not in follows:
            columns[name] = maker.column(graph.columns[name])
    for name, leader in follows.items():
        columns[name] = maker.beside(columns[leader])
    return RawBatch(
        columns=columns,
        row_ids_B=torch.arange(num_rows, device=device),
        event_times_s_B=torch.full((num_rows,), math.nan, dtype=torch.float64, device=device),
        num_rows=num_rows,
        global_rows=num_rows,
    )


def followers(graph: FeatureGraph) -> dict[str, str]:
    """Columns of weights and scores, each with the column of ids it runs beside."""
    follows = {node.weights: node.column for node in graph.nodes if node.weights and node.column}
    for node in graph.ops:
        assert node.op is not None
        for name, leader in node.op.parallel().items():
            first = graph.nodes[node.inputs[0]]
            while first.column is None:
                first = graph.nodes[first.inputs[0]]
            follows[name] = leader or first.column
    return follows


class _Maker:
    """Columns of one batch from one generator."""

    def __init__(self, num_rows: int, mean_length: float, generator: torch.Generator) -> None:
        self._num_rows = num_rows
        self._mean_length = mean_length
        self._generator = generator
        self._device = generator.device

    def _uniform(self, number: int) -> torch.Tensor:
        return torch.rand(number, generator=self._generator, device=self._device)

    def label(self, declared: ValueType) -> Column:
        clicks_B = self._uniform(self._num_rows) < CLICK_RATIO
        return Column(values_N=clicks_B.to(getattr(torch, declared.dtype)))

    def column(self, declared: ValueType) -> Column:
        nulls_B = self._uniform(self._num_rows) < NULL_RATIO
        if not declared.is_list:
            return Column(values_N=self._values(self._num_rows, declared.dtype), nulls_N=nulls_B)
        lengths_B = self._lengths().masked_fill(nulls_B, 1)
        number = int(lengths_B.sum())
        return Column(
            values_N=self._values(number, declared.dtype),
            lengths_B=lengths_B,
            nulls_N=torch.repeat_interleave(nulls_B, lengths_B, output_size=number),
        )

    def beside(self, leader: Column) -> Column:
        """Numbers in [0, 1) that run parallel to the ids of another column, null where they are."""
        return Column(
            values_N=self._uniform(leader.values_N.numel()), lengths_B=leader.lengths_B, nulls_N=leader.nulls_N
        )

    def _lengths(self) -> torch.Tensor:
        """Log-normal, capped, with the wanted mean; or all 1."""
        if self._mean_length == 1:
            return torch.ones(self._num_rows, dtype=torch.int32, device=self._device)
        mu = _log_scale(self._mean_length)
        normal_B = torch.randn(self._num_rows, generator=self._generator, device=self._device)
        return (normal_B * SIGMA + mu).exp().round().clamp(max=MAX_LENGTH).to(torch.int32)

    def _values(self, number: int, dtype: Dtype) -> torch.Tensor:
        """Skewed as counts and ids are: integers log-uniform up to 10^9, floats log-normal."""
        if dtype.is_integer:
            skewed = (self._uniform(number).to(torch.float64) * math.log(1e9)).exp()
            return skewed.to(getattr(torch, dtype))
        normal = torch.randn(number, generator=self._generator, device=self._device)
        return normal.mul(2).exp().to(getattr(torch, dtype))


def _log_scale(mean: float) -> float:
    """mu of the log-normal whose mean, capped at MAX_LENGTH, is `mean`; by bisection."""

    def below(z: float) -> float:
        return (1 + math.erf(z / math.sqrt(2))) / 2

    def capped_mean(mu: float) -> float:
        z = (math.log(MAX_LENGTH) - mu) / SIGMA
        return math.exp(mu + SIGMA**2 / 2) * below(z - SIGMA) + MAX_LENGTH * (1 - below(z))

    low, high = math.log(mean) - SIGMA**2 / 2, math.log(MAX_LENGTH)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle) < mean else (low, middle)
    return low
