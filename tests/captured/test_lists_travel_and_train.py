"""Lists of ids in the captured step: layouts, the lookup's input, and training against TorchRec's eager step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from captured.list_training import train_lists
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.captured.jagged_inputs import (
    JaggedInputs,
    fill_rest_kernel,
    gather_lists_kernel,
    gather_lists_twin,
    share_rest_twin,
)
from rap_trainer.captured.list_exchange import Lists
from rap_trainer.captured.lists import Form, form_of, list_layout, roomy
from rap_trainer.captured.schedule import Window
from rap_trainer.plans import plan_job
from torch.multiprocessing.spawn import spawn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def graph_of(plan: int, drop_firstx: bool = False) -> FeatureGraph:
    document = plan_job(plan, max_rows=256, dim=16)
    if drop_firstx:
        document["spec"]["features"][1]["ops"].pop()
    graph, problems = compile_features(RAPJob.model_validate(document).spec)
    assert graph is not None, problems
    return graph


def test_ids_travel_singly_wherever_the_job_or_its_data_allow_it() -> None:
    assert [form_of(graph_of(plan)) for plan in (0, 2, 4)] == [Form.SINGLE, Form.ASSUMED, Form.LISTS]
    assert form_of(graph_of(0, drop_firstx=True)) is Form.ASSUMED


def test_blocks_have_room_for_whatever_the_columns_can_become() -> None:
    graph = graph_of(0, drop_firstx=True)
    names = tuple(feature.name for feature in graph.sparse)
    capacities = {name: 100 for name, kind in graph.columns.items() if kind.is_list}
    layout = list_layout(graph, (names[:20], names[20:]), batch_size=8, capacities=capacities)
    assert layout.room == (2000, 608)  # six lists and int_0's buckets, one a row: 608 is a multiple of 16
    assert (layout.starts[:2], layout.rows[:2], layout.size) == ((0, 2000), (0, 20), 2608)
    output = layout.output_layout()
    output.check(graph)
    assert [(block.base, block.capacity, block.lengths_row) for block in output.blocks] == [
        (0, 2000, 0),
        (2000, 608, 20),
    ]


def test_room_above_what_was_seen_is_small_for_large_batches() -> None:
    assert roomy(1000, 4096) == 1063
    assert roomy(1000, 64) == 1500


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_the_lookups_input_kernel_equals_its_twin(weighted: bool) -> None:
    torch.manual_seed(0)
    W, B, T, room = 2, 3, 4, 64
    with DEVICE:
        lengths = torch.randint(0, 5, (W, T, B), dtype=torch.int32)
        incoming = Lists(
            ids_N=torch.randint(100, 200, (W * room,)),
            lengths=lengths.view(-1),
            weights_N=torch.rand(W * room) if weighted else None,
        )
        inputs = JaggedInputs(("a", "b", "c", "d"), incoming, world_size=W, batch_size=B, spare_rows=3, tail_rows=7)
        inputs.fill()
        expected = JaggedInputs(("a", "b", "c", "d"), incoming, world_size=W, batch_size=B, spare_rows=3, tail_rows=7)
        gather_lists_twin(incoming, inputs.kjt.offsets(), expected.kjt, (W, B, T, 3))
        out = torch.full((W * room,), -1)
        out_weights = torch.full((W * room,), -1.0)
        gather_lists_kernel[(T * W, 2)](
            incoming.ids_N, incoming.ids_N if incoming.weights_N is None else incoming.weights_N, inputs.kjt.offsets(),
            inputs.kjt.offsets(), out, out_weights, B, W, 3, room, T_PADDED=4, SOURCES=False, WEIGHTED=weighted, TILE=4,
        )  # fmt: skip
        filled, total = int(lengths.sum()), W * room
        assert torch.equal(out[:filled], expected.kjt.values()[:filled])
        fill_rest_kernel[(3,)](inputs._filled, out, out_weights, total, 7, WEIGHTED=weighted, TILE=4)
    assert inputs.num_filled() == filled
    offsets = inputs.kjt.offsets()
    assert torch.equal(offsets.diff(), inputs.kjt.lengths().long())  # a lookup sees ids alone
    assert int(offsets[-1]) == filled
    twin = offsets.cpu().clone()
    share_rest_twin(twin, 3, total)
    inputs.share_rest()
    assert torch.equal(offsets.cpu(), twin)
    rest = offsets.diff()[-3:]
    assert int(offsets[-1]) == total
    assert int(rest.max() - rest.min()) <= 1  # what is no id, in equal shares
    assert torch.equal(out, inputs.kjt.values())
    if weighted:
        assert torch.equal(out_weights, inputs.kjt.weights())
    assert torch.equal(offsets.diff()[:-3], inputs.kjt.lengths()[:-3].long())
    assert torch.equal(out[filled:].cpu(), torch.arange(W * room - filled) % 7)


@pytest.mark.parametrize(
    ("world", "window", "num_fitted"),
    [
        (1, Window.OUTPUT_DIST, 0),
        (1, Window.OUTPUT_DIST, 1),
        (2, Window.EMB_BWD, 0),
        (2, Window.EMB_BWD, 1),
        (2, Window.OUTPUT_DIST, 2),
    ],
    ids=["one", "one-fitted", "two-ranks", "one-of-two-fitted", "two-fitted"],
)
def test_lists_train_as_in_torchrecs_eager_step(world: int, window: Window, num_fitted: int, tmp_path: Path) -> None:
    spawn(train_lists, args=(world, str(tmp_path / "store"), window.value, num_fitted), nprocs=world)  # type: ignore[no-untyped-call]  # torch leaves it untyped
