"""Fused kernels against PyTorch op by op and torch.compile, and against the card's own copy bandwidth.

JSON lines. GPU time: many batches captured in one CUDA graph, rotating over input sets larger together than the L2,
median of replays. Run on a GPU: `python trainer/benchmarks/fusion_bench.py [--plans 0,1,2,3,4] [--one-hot 13+26]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJobSpec
from rap_trainer.batch import Column, ModelBatch, RawBatch
from rap_trainer.bench.compiled import hashed
from rap_trainer.bench.timing import profile_steps
from rap_trainer.fusion import FusedProgram, Limits, OutputLayout
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

SETS = 8  # input sets that runs rotate through
ROUNDS = 4  # passes over the sets in one graph
REPLAYS = 15
TABLE_ROWS = 1_000_000


def emit(**result: Any) -> None:
    """One JSON line."""
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in result.items()}), flush=True)


def graph_ms(runs: Sequence[Callable[[], object]]) -> tuple[float, float]:
    """(median, spread) milliseconds of one run, all runs captured one after the other in one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            for run in runs:
                run()
    times = []
    for _ in range(REPLAYS + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / (ROUNDS * len(runs)))
    times = sorted(times[3:])
    return statistics.median(times), times[-1] - times[0]


def wall_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds of five measurements of eager runs, host time included."""
    run()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / repeats * 1e3)
    return statistics.median(times)


def copy_bytes_per_s() -> float:
    """Bytes read plus bytes written a second by a large device-to-device copy."""
    source = torch.randint(0, 2**31 - 1, (2**29,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    ways: list[Callable[[], object]] = [lambda: target.copy_(source), lambda: torch.add(source, 1, out=target)]
    milliseconds = min(*(graph_ms([way])[0] for way in ways), *(wall_ms(way) for way in ways))
    return 2 * source.numel() * 4 / milliseconds * 1e3


def one_hot_graph(num_dense: int, num_sparse: int) -> FeatureGraph:
    """Scalar columns only: fill, logit; fill, hash (firstx(1) has nothing to do)."""
    spec = RAPJobSpec.model_validate(
        {
            "source": {"files": {"path": "/data"}},
            "columns": {
                "label": "float32",
                f"int_{{0..{num_dense - 1}}}": "float32",
                f"cat_{{0..{num_sparse - 1}}}": "int32",
            },
            "label": "label",
            "features": [
                {
                    "columns": [f"int_{{0..{num_dense - 1}}}"],
                    "ops": [{"fillNull": {"value": 0}}, {"logit": {"eps": 1e-5}}],
                },
                {
                    "columns": [f"cat_{{0..{num_sparse - 1}}}"],
                    "ops": [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 0}}],
                    "table": {"rows": TABLE_ROWS, "dim": 128},
                },
            ],
            "model": {"factory": "package:model"},
            "checkpoint": {"path": "/checkpoints"},
        }
    )
    graph, problems = compile_features(spec)
    assert graph is not None, problems
    return graph


def one_hot_batch(graph: FeatureGraph, rows: int, seed: int) -> RawBatch:
    """Random scalars, a tenth null."""
    generator = torch.Generator("cuda").manual_seed(seed)
    columns = {}
    for name, value in graph.columns.items():
        if name == graph.label:
            columns[name] = Column(values_N=torch.randint(0, 2, (rows,), device="cuda", generator=generator).float())
            continue
        nulls = torch.rand(rows, device="cuda", generator=generator) < 0.1
        if value.dtype.is_integer:
            values = torch.randint(0, 2**31 - 1, (rows,), device="cuda", generator=generator, dtype=torch.int32)
        else:
            values = torch.rand(rows, device="cuda", generator=generator)
        columns[name] = Column(values_N=values, nulls_N=nulls)
    return RawBatch(
        columns=columns,
        row_ids_B=torch.arange(rows, device="cuda"),
        event_times_s_B=torch.zeros(rows, dtype=torch.float64, device="cuda"),
        num_rows=rows,
        global_rows=rows,
    )


def limits_of(graph: FeatureGraph, batches: Sequence[RawBatch]) -> Limits:
    """Room for the largest of the batches."""
    names = list(dict.fromkeys((*graph.inputs, graph.label)))
    return Limits(
        batch_size=batches[0].num_rows,
        capacities={
            name: max(batch.columns[name].values_N.numel() for batch in batches)
            for name in names
            if graph.columns[name].is_list
        },
        nullable=frozenset(n for n in names if any(b.columns[n].nulls_N is not None for b in batches)),
    )


def fused_runs(
    graph: FeatureGraph, batches: Sequence[RawBatch], layout: OutputLayout | None = None, programs: int | None = None
) -> tuple[FusedProgram, list[Callable[[], object]]]:
    """One launch sequence for each batch, outputs rotating too."""
    fused = FusedProgram(graph, torch.device("cuda"), limits=limits_of(graph, batches), layout=layout)
    F, rows = len(graph.sparse), batches[0].num_rows
    padded = layout is not None and layout.padded
    runs: list[Callable[[], object]] = []
    for batch in batches:
        present = torch.zeros(rows, F, dtype=torch.int8, device="cuda") if padded else None
        binding, outputs = fused.bind(batch), fused.new_outputs(present_BF=present)
        runs.append(lambda b=binding, o=outputs: fused.launch(b, o, max_programs=programs))  # type: ignore[misc]
    return fused, runs


def chain_of_columns(num_dense: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and null flags of each column, dense ones first -> (float32 [B, num_dense], int64 [num_sparse * B]).

    Plain functional PyTorch, as somebody writes it for torch.compile. Not the eager twins: those work in place and on bits,
    for speed op by op, which inductor of PyTorch 2.11 does not take.
    """
    pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
    numbers = [torch.logit(torch.where(nulls, 0.0, values), 1e-5) for values, nulls in pairs[:num_dense]]
    ids = [hashed(torch.where(nulls, 0, values).to(torch.int64), TABLE_ROWS) for values, nulls in pairs[num_dense:]]
    return torch.stack(numbers, 1), torch.cat(ids)


def chain_of_rows(num_dense: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with columns of a type as the rows of one tensor, feature by feature: values, flags; dense, then sparse."""
    values, nulls, ids, absent = (tensor.unbind(0) for tensor in tensors)
    pairs = [*zip(values, nulls, strict=True), *zip(ids, absent, strict=True)]
    return chain_of_columns(num_dense, *(tensor for pair in pairs for tensor in pair))


def chain_at_once(num_dense: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with one expression for all columns of a type: possible while every feature has the same parameters."""
    del num_dense
    values, nulls, ids, absent = tensors
    numbers = torch.logit(torch.where(nulls, 0.0, values), 1e-5)
    return numbers.T.contiguous(), hashed(torch.where(absent, 0, ids).to(torch.int64), TABLE_ROWS).reshape(-1)


QUARTERS = 4  # calls of one compiled function: inductor does not survive 52+104 columns in one
PEERS: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "columns": chain_of_columns,
    "quarters": chain_of_columns,
    "rows": chain_of_rows,
    "at_once": chain_at_once,
}


def peer_inputs(graph: FeatureGraph, batch: RawBatch, peer: str) -> list[list[torch.Tensor]]:
    """Arguments of each call of a peer: values and null flags of the features' columns, dense ones first."""
    parts = [[batch.columns[str(feature.column)] for feature in kind] for kind in (graph.dense, graph.sparse)]
    pairs = [[(c.values_N, c.nulls_N) for c in columns if c.nulls_N is not None] for columns in parts]
    if peer in ("columns", "quarters"):
        calls = QUARTERS if peer == "quarters" else 1
        shares = [[kind[len(kind) * n // calls : len(kind) * (n + 1) // calls] for kind in pairs] for n in range(calls)]
        return [[tensor for kind in share for pair in kind for tensor in pair] for share in shares]
    return [[torch.stack(tensors) for kind in pairs for tensors in zip(*kind, strict=True)]]


def bench_one_hot(num_dense: int, num_sparse: int, rows: int, peers: Sequence[str]) -> None:
    """Fused against eager and compiled, on scalar columns. Lengths, all 1, are written by none of them in every batch."""
    graph = one_hot_graph(num_dense, num_sparse)
    batches = [one_hot_batch(graph, rows, seed) for seed in range(SETS)]
    fused, _runs = fused_runs(graph, batches)
    _fused, runs = fused_runs(graph, batches, replace(OutputLayout.plain(graph), write_lengths=False))
    milliseconds, spread = graph_ms(runs)
    result: dict[str, Any] = {"fused_ms": milliseconds, "fused_spread_ms": spread, "launches": fused.num_kernels}
    produced, expected = fused.run(batches[0]), Program(graph).run(batches[0])
    same(produced, expected)
    result["fused_host_bound_us"] = wall_ms(lambda: runs[0](), 200) * 1e3
    emit(bench="one_hot", dense=num_dense, sparse=num_sparse, rows=rows, **result)
    for peer in peers:
        function = partial(PEERS[peer], num_dense // (QUARTERS if peer == "quarters" else 1))
        sets = [peer_inputs(graph, batch, peer) for batch in batches]
        result = {"eager_graph_ms": graph_ms([partial(call_all, function, calls) for calls in sets])[0]}
        try:
            result |= bench_compiled(function, sets, expected)
            result["over_fused"] = result["graph_ms"] / milliseconds
        except Exception as error:  # what inductor cannot compile must not cost the other results
            result["error"] = repr(error)[:2000]
        emit(bench="compile", peer=peer, dense=num_dense, sparse=num_sparse, rows=rows, **result)


def call_all(function: Callable[..., Any], calls: Sequence[list[torch.Tensor]]) -> list[Any]:
    """What each call gives."""
    return [function(*arguments) for arguments in calls]


def bench_compiled(
    function: Callable[..., Any], sets: Sequence[list[list[torch.Tensor]]], expected: ModelBatch
) -> dict[str, float]:
    """A peer under torch.compile with combo kernels, checked.

    graph_ms: GPU time measured as everybody's, its kernels captured in one graph with no copy of the inputs. trees_gpu_ms,
    trees_ms: time in which the GPU works, and wall time, of mode reduce-overhead, whose graphs begin with a copy of the inputs.
    """
    import torch._inductor.config as inductor

    inductor.combo_kernels, inductor.benchmark_combo_kernel = True, False
    begin = time.perf_counter()
    fast: Callable[..., Any] = torch.compile(function, dynamic=False)
    numbers, ids = zip(*call_all(fast, sets[0]), strict=True)
    torch.cuda.synchronize()
    result = {"compile_s": time.perf_counter() - begin}
    assert torch.equal(torch.cat(ids), expected.sparse.values()), "compiled ids differ"
    torch.testing.assert_close(torch.cat(numbers, 1), expected.dense_BD, rtol=1e-5, atol=1e-5)
    result["graph_ms"], result["graph_spread_ms"] = graph_ms([partial(call_all, fast, calls) for calls in sets])
    emit(bench="compile_so_far", **result)
    trees: Callable[..., Any] = torch.compile(function, dynamic=False, mode="reduce-overhead")
    for _ in range(3):
        call_all(trees, sets[0])
    busy = profile_steps(lambda: call_all(trees, sets[0]), steps=20)
    result |= {"trees_gpu_ms": busy.busy_ms, "trees_kernels": busy.kernels}
    result["trees_ms"] = wall_ms(lambda: call_all(trees, sets[0]), 100)
    torch._dynamo.reset()
    return result


def same(actual: ModelBatch, expected: ModelBatch, rtol: float = 1e-5) -> None:
    """Raises AssertionError unless ids are equal and numbers close."""
    assert torch.equal(actual.sparse.lengths(), expected.sparse.lengths()), "lengths differ"
    assert torch.equal(actual.sparse.values(), expected.sparse.values()), "ids differ"
    if expected.sparse.weights_or_none() is not None:
        torch.testing.assert_close(actual.sparse.weights(), expected.sparse.weights())
    torch.testing.assert_close(actual.dense_BD, expected.dense_BD, rtol=rtol, atol=rtol, equal_nan=True)


def least_bytes(graph: FeatureGraph, batch: RawBatch, produced: ModelBatch) -> int:
    """Bytes that must move: each input tensor read once, each output written once."""
    read = 0
    for name in dict.fromkeys((*graph.inputs, graph.label)):
        column = batch.columns[name]
        parts = (column.values_N, column.nulls_N, column.lengths_B)
        read += sum(part.numel() * part.element_size() for part in parts if part is not None)
    sparse = produced.sparse
    weights = 0 if sparse.weights_or_none() is None else sparse.weights().numel() * 4
    written = sparse.values().numel() * 8 + sparse.lengths().numel() * 4 + produced.dense_BD.numel() * 4 + weights
    return int(read + written)


def bench_plan(number: int, rows: int, bandwidth: float) -> None:
    """A plan's fused program: launches, GPU time, share of the copy bandwidth, and each launch alone."""
    document = plan_job(number)
    graph, problems = compile_features(RAPJobSpec.model_validate(document["spec"]))
    assert graph is not None, problems
    batches = [synthetic_batch(document, rows, seed=seed, device="cuda") for seed in range(2 if number == 4 else SETS)]
    begin = time.perf_counter()
    fused, runs = fused_runs(graph, batches)
    runs[0]()
    torch.cuda.synchronize()
    prepare_s = time.perf_counter() - begin
    produced = fused.run(batches[0])
    expected = Program(graph).run(batches[0])
    same(produced, expected, 1e-2 if number in (2, 3) else 1e-5)  # four logits in a row magnify the last bit
    moved = least_bytes(graph, batches[0], expected)
    milliseconds, spread = graph_ms(runs)
    eager_ms = wall_ms(lambda: Program(graph).run(batches[0]), 1)
    result: dict[str, Any] = {"ms": milliseconds, "spread_ms": spread, "eager_ms": eager_ms, "prepare_s": prepare_s}
    result |= {"megabytes": moved / 1e6, "share_of_copy": moved / milliseconds * 1e3 / bandwidth}
    kernels = [launch.kernel for launch in fused.groups.launches]
    for place, kernel in enumerate(kernels):
        binding, outputs = fused.bind(batches[0]), fused.new_outputs()
        fused.launch(binding, outputs)
        alone = graph_ms([lambda p=place, b=binding, o=outputs: fused.launch_kernel(p, b, o)])[0]  # type: ignore[misc]
        result[f"{place}_{kernel}_us"] = alone * 1e3
    emit(bench="plan", plan=number, rows=rows, ops=len(graph.ops), launches=fused.num_kernels, **result)
    if number == 4:
        return
    order = [feature.name for feature in graph.sparse]
    padded, runs = fused_runs(graph, batches, OutputLayout.one_id_each(order))
    milliseconds, spread = graph_ms(runs)
    narrow = graph_ms(fused_runs(graph, batches, OutputLayout.one_id_each(order), 64)[1])[0]
    emit(
        bench="plan_padded",
        plan=number,
        rows=rows,
        launches=padded.num_kernels,
        ms=milliseconds,
        spread_ms=spread,
        ms_64_programs=narrow,
    )


def main() -> None:
    """Runs what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8192, help="rows of a batch")
    parser.add_argument("--plans", default="0,2,3,4", help="plans to time")
    parser.add_argument("--one-hot", default="13+26,52+104", help="numbers of dense and sparse features to time")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers to compile with torch.compile")
    options = parser.parse_args()
    bandwidth = copy_bytes_per_s()
    emit(bench="device", name=torch.cuda.get_device_name(), torch=torch.__version__, copy_tb_per_s=bandwidth / 1e12)
    for number in (int(p) for p in options.plans.split(",") if p):
        try:
            bench_plan(number, options.batch, bandwidth)
        except Exception as error:  # one plan's failure must not cost the others' results
            emit(bench="plan", plan=number, error=repr(error)[:2000])
    for pair in (p for p in options.one_hot.split(",") if p):
        num_dense, num_sparse = (int(number) for number in pair.split("+"))
        bench_one_hot(num_dense, num_sparse, options.batch, [peer for peer in options.peers.split(",") if peer])


if __name__ == "__main__":
    main()
