"""Jobs and random batches for tests of the fused kernels, and the comparison with the eager program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJobSpec
from rap_contract.types import Dtype, ValueType
from rap_trainer.batch import Column, ModelBatch, RawBatch
from rap_trainer.fusion import FusedProgram, Limits
from rap_trainer.program import Program

COLUMNS = {
    "label": "float32",
    "i32": "int32",
    "i64": "int64",
    "f32": "float32",
    "f64": "float64",
    "tz": "int32",
    "ids": "list<int64>",
    "ids32": "list<int32>",
    "more": "list<int64>",
    "few": "list<int64>",
    "scores": "list<float32>",
    "more_scores": "list<float32>",
    "floats": "list<float32>",
    "doubles": "list<float64>",
}
PARALLEL = {"scores": "ids", "more_scores": "more"}
"""Lists with the lengths of another."""
TABLE = {"rows": 1000, "dim": 4}


def graph_of(features: Sequence[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> FeatureGraph:
    """The graph of features written as in a job's YAML."""
    spec = RAPJobSpec.model_validate(
        {
            "source": {"files": {"path": "/data"}},
            "columns": dict(columns),
            "label": "label",
            "features": list(features),
            "model": {"factory": "package:model"},
            "checkpoint": {"path": "/checkpoints"},
        }
    )
    graph, problems = compile_features(spec)
    assert graph is not None, "\n".join(map(str, problems))
    return graph


def dense(name: str, column: str, *ops: Mapping[str, Any]) -> dict[str, Any]:
    """A dense feature."""
    return {"name": name, "columns": [column], "ops": list(ops)}


def sparse(name: str, column: str, *ops: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A sparse feature; ids out of range read row 0 unless said otherwise."""
    table = more.pop("table", TABLE | {"outOfRange": "zero"})
    return {"name": name, "columns": [column], "ops": list(ops), "table": table, **more}


def batch_of(
    graph: FeatureGraph, rows: int, *, seed: int, nulls: Iterable[str] = (), device: str = "cpu", longest: int = 6
) -> RawBatch:
    """Random rows: lists empty to `longest`, ids that repeat, extremes, NaN and infinities; nulls in `nulls`."""
    generator = torch.Generator().manual_seed(seed)
    lengths: dict[str, torch.Tensor] = {}
    columns: dict[str, Column] = {}
    for name, value in graph.columns.items():
        num = rows
        if value.is_list:
            of = PARALLEL.get(name, name)
            if of not in lengths:
                lengths[of] = torch.randint(0, longest + 1, (rows,), generator=generator, dtype=torch.int32)
            num = int(lengths[of].sum())
        flags = torch.rand(num, generator=generator) < 0.15
        columns[name] = Column(
            values_N=numbers(name, value, num, generator),
            nulls_N=flags if name in nulls else None,
            lengths_B=lengths[PARALLEL.get(name, name)] if value.is_list else None,
        )
    raw = RawBatch(
        columns=columns,
        row_ids_B=torch.randint(-(2**62), 2**62, (rows,), generator=generator),
        event_times_s_B=torch.zeros(rows, dtype=torch.float64),
        num_rows=rows,
        global_rows=rows,
    )
    return raw.map(lambda tensor: tensor.to(device))


def numbers(name: str, value: ValueType, num: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of a column, small ones often."""
    if name == "label":
        return torch.randint(0, 2, (num,), generator=generator).to(torch.float32)
    if value.dtype.is_integer:
        low, high = (-86_400, 86_400) if name == "tz" else Dtype(value.dtype).integer_bounds
        wide = torch.randint(low // 2, high // 2, (num,), generator=generator) * 2
        small = torch.randint(-3, 9, (num,), generator=generator)
        mixed = torch.where(torch.rand(num, generator=generator) < 0.7, small, wide)
        return mixed.to(torch.int32 if value.dtype is Dtype.INT32 else torch.int64)
    dtype = torch.float32 if value.dtype is Dtype.FLOAT32 else torch.float64
    mixed = torch.randn(num, generator=generator, dtype=dtype) * 4
    if name.endswith("scores"):
        return mixed
    special = torch.tensor([0.0, -0.0, 0.5, 1.0, 1.5, 2.0, torch.nan, torch.inf, -torch.inf], dtype=dtype)
    chosen = special[torch.randint(0, special.numel(), (num,), generator=generator)]
    return torch.where(torch.rand(num, generator=generator) < 0.3, chosen, mixed)


def fused_of(graph: FeatureGraph, device: str = "cpu", rows: int = 8) -> FusedProgram:
    """The fused program of a graph."""
    return FusedProgram(graph, torch.device(device), limits=Limits(batch_size=rows))


def expect_equal(actual: ModelBatch, expected: ModelBatch, *, tolerance: float = 4e-6) -> None:
    """Integers bit-equal, dense numbers within `tolerance` relative and absolute, NaN and infinities alike."""
    assert actual.sparse.keys() == expected.sparse.keys()
    assert actual.sparse.stride() == expected.sparse.stride()
    rows = expected.sparse.stride()
    F = len(expected.sparse.keys())
    lengths, wanted = actual.sparse.lengths().view(F, rows).cpu(), expected.sparse.lengths().view(F, rows).cpu()
    for name, got_B, wanted_B in zip(expected.sparse.keys(), lengths, wanted, strict=True):
        assert torch.equal(got_B, wanted_B), f"{name}: lengths {got_B.tolist()} are not {wanted_B.tolist()}"
    ends = wanted.sum(1).cumsum(0).tolist()
    got_N, wanted_N = actual.sparse.values().cpu(), expected.sparse.values().cpu()
    for name, begin, end in zip(expected.sparse.keys(), [0, *ends], ends, strict=False):
        got, want = got_N[begin:end], wanted_N[begin:end]
        assert torch.equal(got, want), f"{name}: ids {got.tolist()} are not {want.tolist()}"
    assert got_N.numel() == wanted_N.numel()
    weights = expected.sparse.weights_or_none()
    if weights is not None:
        torch.testing.assert_close(actual.sparse.weights().cpu(), weights.cpu(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        actual.dense_BD.cpu(), expected.dense_BD.cpu(), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert torch.equal(actual.labels_B.cpu(), expected.labels_B.cpu())


def check(features: Sequence[Mapping[str, Any]], *, nulls: Iterable[str] = (), device: str = "cpu") -> None:
    """Fused and eager agree on several batches of a job, of no rows and more."""
    graph = graph_of(features)
    program, fused = Program(graph), fused_of(graph, device)
    given = frozenset(nulls)
    for seed, rows in enumerate((0, 11)):
        raw = batch_of(graph, rows, seed=seed, nulls=given, device=device)
        expect_equal(fused.run(raw), program.run(raw))
