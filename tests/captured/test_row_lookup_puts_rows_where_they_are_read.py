"""The lookup that stores rows in each rank's buffer: its kernel against its twin, and when it is not taken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from captured.gpu_training import batches, build, captured, job
from rap_trainer.captured.blocks import Blocks
from rap_trainer.captured.exchange import LocalExchange
from rap_trainer.captured.row_lookup import RowLookup, row_lookup
from rap_trainer.captured.state import Tuning
from rap_trainer.model.shard import table_weights
from rap_trainer.world import World
from torch.profiler import ProfilerActivity, profile

ROWS, DIM, BATCH = 50, 16, 37
DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("rows", [slice(0, BATCH), slice(5, 36)], ids=str)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_kernel_puts_what_its_twin_puts(rank: int, rows: slice) -> None:
    blocks = Blocks(order=tuple(range(5)), counts=(3, 2), rank=rank, batch_size=BATCH, dim=DIM)
    count = blocks.counts[rank]
    tables = [torch.randn(ROWS, DIM, device=DEVICE) for _ in range(count)]
    ids_N = torch.randint(0, ROWS, (count * 2 * BATCH,), device=DEVICE)
    filled = []
    for of_kernel in (True, False):
        places = [torch.full((BATCH * count * DIM,), -1.0, device=DEVICE) for _ in range(2)]
        lookup = RowLookup(tables, blocks, places)
        if of_kernel:
            lookup.put_kernel(ids_N, rows, programs=3)
        else:
            lookup.put_twin(ids_N, rows)
        filled.append(torch.stack(places))
    assert torch.equal(*filled)
    assert (filled[0].view(2, BATCH, -1)[:, : rows.start] == -1).all()
    assert (filled[0].view(2, BATCH, -1)[:, rows] != -1).all()


def test_it_is_not_taken_where_tables_or_the_exchange_do_not_allow_it() -> None:
    blocks = Blocks(order=(0, 1), counts=(2,), rank=0, batch_size=BATCH, dim=DIM)
    exchange, cpu = LocalExchange(blocks, torch.device("cpu")), torch.device("cpu")

    def taken(*tables: torch.Tensor) -> bool:
        module = SimpleNamespace(split_embedding_weights=lambda: tables, feature_table_map=range(len(tables)))
        return row_lookup([module], blocks, exchange, cpu) is not None

    table = torch.zeros(ROWS, DIM)
    assert taken(table, table)
    assert not taken(table, table.half())
    assert not taken(table, torch.zeros(ROWS, 2 * DIM))
    assert row_lookup([], blocks, SimpleNamespace(places=lambda own: None), cpu) is None  # NCCL's


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_they_change_no_bit_of_a_step_and_torchrecs_lookup_launches_nothing(world: World) -> None:
    document, spec, graph = job()
    raws = batches(document, graph) * 3
    found = []
    for direct in (False, True):
        model = build(spec, graph, world)
        trainee = captured(model, graph, None, world, tuning=Tuning(direct=direct))
        tables = {name: weight.local_shards()[0].tensor for name, weight in table_weights(model.module)}
        found.append((trainee.losses(raws), tables))
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            trainee.losses(raws[:2])
            torch.cuda.synchronize()
        kernels = {event.name for event in profiler.events() or [] if "forward" in event.name or "rows" in event.name}
        assert any("rows_kernel" in name for name in kernels) == direct
        assert any("split_embedding_codegen_forward" in name for name in kernels) != direct
        trainee.runtime.close()
    (apart, apart_tables), (straight, straight_tables) = found
    assert straight == apart
    assert all(torch.equal(straight_tables[name], table) for name, table in apart_tables.items())
