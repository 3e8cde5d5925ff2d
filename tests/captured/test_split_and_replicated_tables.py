"""Tables split by columns and tables of which every rank has a copy: training, state and layouts as in the eager runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from captured.sharded_training import (
    Batches,
    Recipe,
    both,
    build,
    eager_losses,
    equal_states,
    sharded_job,
    train_on_rank,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen, PoolingMode
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument
from rap_trainer.captured.assemble import refusals
from rap_trainer.captured.blocks import Blocks, Origin, Part
from rap_trainer.captured.columns import SplitColumns
from rap_trainer.captured.input_dist import ownership_of
from rap_trainer.captured.jagged_inputs import JaggedInputs, Received, gather_lists_kernel
from rap_trainer.captured.list_exchange import Lists
from rap_trainer.captured.schedule import Window
from rap_trainer.captured.traced_part import TracedPart
from rap_trainer.checkpoint.tensors import Snapshot, begin_state, training_tensors
from rap_trainer.model.replicated_lookup import Lookup
from rap_trainer.world import World, join_world
from torch.multiprocessing.spawn import spawn

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS = Blocks(
    order=(2, 0, 3, 1),
    counts=(1, 1),
    rank=0,
    batch_size=5,
    dim=8,
    parts=(
        Part(feature=2, owner=0, start=0, column=4, width=4),
        Part(feature=0, owner=0, start=4, column=0, width=8),
        Part(feature=1, owner=1, start=0, column=0, width=8),
        Part(feature=2, owner=1, start=8, column=0, width=4),
    ),
    num_replicated=1,
)
"""Two whole features, one of two parts on two ranks, one replicated."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=False)
    dist.destroy_process_group()


def test_features_beside_the_exchange_lie_behind_the_peers_blocks() -> None:
    assert (BLOCKS.widths, BLOCKS.num_sent, BLOCKS.sent) == ((12, 12), (2, 2), (2, 0, 1, 2))
    assert (BLOCKS.beside_start, BLOCKS.peer_elements) == (120, 120 + 5 * 2 * 8)
    rows = {row.position: (row.origin, row.offset, row.stride) for row in BLOCKS.tile()}
    assert rows[3] == (Origin.OWN, 4, 12)
    assert rows[1] == (Origin.PEER, 60, 12)
    assert (rows[4], rows[2]) == ((Origin.PEER, 120, 16), (Origin.PEER, 128, 16))
    assert [run.count for run in BLOCKS.runs()] == [1, 1, 2]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_kernel_that_moves_columns_equals_its_twin(rank: int) -> None:
    blocks = replace(BLOCKS, rank=rank)
    with DEVICE:
        own, peer = torch.rand(5 * 12), torch.rand(blocks.peer_elements)
        columns = SplitColumns(blocks, DEVICE)
    for collect, rows in ((True, slice(1, 4)), (True, slice(0, 5)), (False, slice(0, 5))):
        pairs = [(own.clone(), peer.clone()) for _ in range(2)]
        columns.move_kernel(*pairs[0], rows, collect=collect)
        columns.move_twin(*pairs[1], rows, collect=collect)
        assert all(map(torch.equal, *pairs))
        assert not (torch.equal(pairs[0][0], own) and torch.equal(pairs[0][1], peer))


def test_lists_of_split_tables_are_found_behind_the_own_ones() -> None:
    torch.manual_seed(0)
    W, B, own_room, split_room, features = 2, 3, 32, 48, ("s1", "a", "s1", "b")
    received = Received(own=("a", "b"), own_room=own_room, split=("s0", "s1"), split_room=split_room)
    with DEVICE:
        lengths = torch.randint(0, 5, (W * 4 * B,), dtype=torch.int32)
        ids = torch.randint(100, 200, (W * (own_room + split_room),))
        incoming = Lists(ids_N=ids, lengths=lengths, weights_N=torch.rand(ids.numel()))
        inputs = JaggedInputs(features, incoming, world_size=W, batch_size=B, spare_rows=3, tail_rows=7,
                              received=received)  # fmt: skip
        inputs.fill()
        assert inputs._sources is not None
        out, out_weights = torch.full_like(inputs.kjt.values(), -1), torch.full_like(inputs.kjt.weights(), -1.0)
        gather_lists_kernel[(4 * W, 2)](
            ids, incoming.weights_N, inputs.kjt.offsets(), inputs._sources.places_TW, out, out_weights, B, W, 3, 0,
            T_PADDED=4, SOURCES=True, WEIGHTED=True, TILE=4,
        )  # fmt: skip
    filled = inputs.num_filled()
    assert filled == int(inputs.kjt.lengths().sum())
    assert torch.equal(out[:filled], inputs.kjt.values()[:filled])
    assert torch.equal(out_weights[:filled], inputs.kjt.weights()[:filled])
    assert (out[filled:] == -1).all()
    split_lengths = lengths[W * 2 * B :].view(W, 2, B).sum(2)
    offsets = inputs.kjt.offsets().view(-1)
    for w in range(W):
        begin, end = int(offsets[w * B]), int(offsets[(w + 1) * B])
        source = W * own_room + w * split_room + int(split_lengths[w, 0])
        assert torch.equal(inputs.kjt.values()[begin:end], ids[source : source + int(split_lengths[w, 1])])


@pytest.mark.parametrize(
    ("max_length", "weighted", "window"),
    [(1, False, Window.OUTPUT_DIST), (4, False, Window.EMB_BWD)],
    ids=["one-id", "lists"],
)
def test_one_rank_trains_as_in_the_eager_runtime(world: World, max_length: int, weighted: bool, window: Window) -> None:
    both(world, max_length=max_length, weighted=weighted, window=window)


def test_a_model_of_any_kind_trains_so_too(world: World) -> None:
    _, spec, graph = sharded_job(model={"factory": "captured.wide_model:build"})
    batches = [Batches(graph, world, 1, False, num=4) for _ in range(2)]
    expected = eager_losses(build(spec, graph, world), batches[0], range(4))
    recipe = Recipe(build(spec, graph, world), batches[1], window=Window.MLP_BWD)
    assert isinstance(recipe.assembly.dense, TracedPart)
    torch.testing.assert_close(recipe.losses(range(4)), expected, rtol=1e-5, atol=1e-6)


def test_two_ranks_train_as_in_the_eager_runtime(tmp_path: Path) -> None:
    spawn(train_on_rank, args=(2, str(tmp_path / "store")), nprocs=2)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def test_copies_of_every_table_leave_nothing_to_capture(world: World) -> None:
    _, spec, graph = sharded_job(("dataParallel", "dataParallel"))
    assert refusals(build(spec, graph, world)) == (
        "every rank has a copy of every table: there is nothing to exchange",
    )


def test_rows_split_over_ranks_have_no_captured_form() -> None:
    sharded = SimpleNamespace(_embedding_shardings=[object()], _sharding_types=["row_wise"])
    with pytest.raises(ValueError, match="sharding row_wise has no captured form"):
        ownership_of(sharded)


@pytest.mark.parametrize("sharding", ["columnWise", "dataParallel"])
def test_tables_without_a_cpu_kernel_of_their_update_stay_whole(world: World, sharding: str) -> None:
    _, spec, graph = sharded_job(
        ("tableWise", sharding), optimizer={"dense": {"sgd": {"lr": 0.1}}, "embedding": {"adam": {"lr": 0.1}}}
    )
    with pytest.raises(InvalidDocument, match=f"a {sharding} table needs an update that FBGEMM has a CPU kernel of"):
        build(spec, graph, world)


@pytest.mark.filterwarnings("ignore")
def test_parts_and_copies_come_back_from_a_checkpoint(world: World, tmp_path: Path) -> None:
    _, spec, graph = sharded_job()
    models = [build(spec, graph, world) for _ in range(2)]
    eager_losses(models[0], Batches(graph, world, 1, False, num=2), range(2))
    begin_state(models[1])
    copies = Snapshot(world.checkpoint_group).take(training_tensors(models[0]))
    dcp.save(
        dict(copies),
        storage_writer=dcp.FileSystemWriter(tmp_path),
        planner=dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )
    dcp.load(
        dict(training_tensors(models[1])),
        storage_reader=dcp.FileSystemReader(tmp_path),
        planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )
    equal_states(models[1], models[0])


def test_copied_tables_are_of_one_dim(world: World) -> None:
    document, _, _ = sharded_job(model={"factory": "captured.wide_model:build"})
    document["spec"]["features"][3]["table"]["dim"] = 8
    spec = RAPJob.model_validate(document).spec
    graph, _ = compile_features(spec)
    assert graph is not None
    with pytest.raises(InvalidDocument, match="dataParallel tables have dims 8 and 16"):
        build(spec, graph, world)


def test_means_of_weighted_lists_have_their_true_gradient() -> None:
    torch.manual_seed(0)
    specs = [(5, 4), (7, 4)]
    kernel = DenseTableBatchedEmbeddingBagsCodegen(
        specs, feature_table_map=[0, 1, 1], pooling_mode=PoolingMode.MEAN, use_cpu=True
    )
    lookup = Lookup(module=kernel, dim=4, first_rows_T=kernel.hash_size_cumsum[:-1])
    lengths_TB = torch.tensor([[2, 0, 1], [3, 1, 0], [0, 0, 2]])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths_TB.flatten().cumsum(0)])
    ids, weights = torch.tensor([4, 0, 4, 6, 6, 1, 0, 5, 6]), torch.rand(9)
    pooled = lookup(ids, offsets, weights)
    gradient = torch.rand_like(pooled)
    (got,) = torch.autograd.grad(pooled, [kernel.weights], gradient)
    tables = [kernel.weights[:20].view(5, 4), *[kernel.weights[20:].view(7, 4)] * 2]
    bags = [
        (tables[t][ids[a:b]] * weights[a:b, None]).sum(0) / max(b - a, 1)
        for t, b0 in enumerate(range(0, 9, 3))
        for a, b in zip(offsets[b0 : b0 + 3].tolist(), offsets[b0 + 1 : b0 + 4].tolist(), strict=True)
    ]
    expected = torch.stack(bags).view(3, 3, 4).transpose(0, 1).reshape(3, 12)
    torch.testing.assert_close(pooled, expected)
    torch.testing.assert_close(got, torch.autograd.grad(expected, [kernel.weights], gradient)[0])
    assert lookup(ids[:0], offsets[:1]).shape == (0, 12)


def test_a_copied_table_is_of_the_dense_optimizers_type() -> None:
    document, _, _ = sharded_job()
    document["spec"]["features"][3]["table"]["dtype"] = "float16"
    with pytest.raises(ValueError, match="a dataParallel table is float32"):
        RAPJob.model_validate(document)
