"""What the captured runtime does not take is refused with the reason, so that `auto` can fall back and say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_trainer.captured.assemble import CannotCapture, assemble, refusals
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.traced_part import TracedPart
from rap_trainer.model.build import build_model
from rap_trainer.model.shard import ShardedModel, shard_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.plans import plan_job
from rap_trainer.world import World, join_world

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=False)
    dist.destroy_process_group()


def job(*, dim: int = 16, **changes: Any) -> tuple[RAPJobSpec, FeatureGraph]:
    document = plan_job(0, max_rows=50, dim=dim, batch_size=16)
    document["spec"].update(changes)
    spec = RAPJob.model_validate(document).spec
    graph, problems = compile_features(spec)
    assert graph is not None, problems
    return spec, graph


def build(spec: RAPJobSpec, graph: FeatureGraph, world: World) -> ShardedModel:
    return shard_model(build_model(spec, embedding_bag_collection(graph), num_dense=graph.dense_width), spec, world)


def test_plan_0_has_nothing_to_refuse(world: World) -> None:
    assert refusals(build(*job(), world)) == ()


def test_every_reason_is_named_at_once(world: World) -> None:
    model = build(*job(), world)
    model.dense._optimizer.param_groups[0]["nesterov"] = True  # type: ignore[union-attr]
    assert refusals(model) == ("option nesterov of SGD has no captured form",)
    with pytest.raises(CannotCapture, match="no captured form"):
        assemble(model, world, batch_size=16)


@pytest.mark.parametrize(("dim", "precision"), [(8, "tf32"), (48, "tf32"), (16, "bf16")])
def test_what_no_kernel_takes_is_traced(world: World, dim: int, precision: str) -> None:
    parts = assemble(build(*job(dim=dim), world), world, batch_size=16, precision=precision)
    assert isinstance(parts.dense, TracedPart)


def test_a_model_that_reads_ids_besides_its_tables_is_refused(world: World) -> None:
    spec, graph = job(model={"factory": "captured.wide_model:peeking"})
    with pytest.raises(CannotCapture, match=r"cannot be run apart from its tables: .*lengths"):
        CapturedRuntime(build(spec, graph, world), graph, world, batch_size=16)


def test_lists_in_tables_of_several_kinds_are_refused_before_anything_changes(world: World) -> None:
    features = plan_job(0, max_rows=50, dim=16)["spec"]["features"]
    features[1]["ops"].pop()
    features[1]["table"]["pooling"] = "mean"
    spec, graph = job(features=features)
    model = build(spec, graph, world)
    with pytest.raises(CannotCapture, match=r"lists of ids in tables of several kinds \(dim, type or pooling\)"):
        CapturedRuntime(model, graph, world, batch_size=16)
    assert all(parameter.is_contiguous() for parameter in model.module.parameters())


def test_an_unknown_exchange_is_refused(world: World) -> None:
    from dataclasses import replace

    from rap_trainer.captured.blocks import Blocks
    from rap_trainer.captured.choose_exchange import make_exchange

    blocks = Blocks(order=(0, 1), counts=(1, 1), rank=0, batch_size=2, dim=4)
    with pytest.raises(ValueError, match="unknown exchange 'carrier-pigeon'"):
        make_exchange("carrier-pigeon", blocks, replace(world, size=2, local_size=2))


def test_parameters_become_views_and_keep_their_values(world: World) -> None:
    model = build(*job(), world)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters() if "embedding_bags" not in name}
    parts = assemble(model, world, batch_size=16)
    assert parts.dense.flat.is_adopted()
    for name, parameter in model.module.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name])
    state = model.dense.state_dict() if model.dense is not None else {}
    assert "state" in state
