"""The captured runtime on a GPU with lists of ids, whose lengths change from batch to batch, against the eager reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from captured.gpu_training import ROWS, batches, build, captured, eager, job
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob, RAPJobSpec
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.batch import RawBatch
from rap_trainer.bench.blocks import with_blocks
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.lists import Form
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.sizes import Size
from rap_trainer.captured.slots import Slot
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.plans import MEAN_LENGTH, plan_job, synthetic_batch
from rap_trainer.world import World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_a_list_column_that_outgrows_its_room_is_captured_again_not_cut(world: World) -> None:
    document, spec, graph = job()
    raws = batches(document, graph)
    column = raws[3].columns["cat_4"]
    assert column.lengths_B is not None
    twice = replace(column, values_N=column.values_N.repeat_interleave(2), nulls_N=None, lengths_B=column.lengths_B * 2)
    changed = replace(raws[3], columns={**raws[3].columns, "cat_4": twice}, blocks=())
    raws[3] = with_blocks(changed, graph)
    evaluator = Evaluator(EvaluationSpec(), world.device)
    expected = eager(build(spec, graph, world), graph, evaluator, world).losses(raws)
    trainee = captured(build(spec, graph, world), graph, None, world)
    torch.testing.assert_close(trainee.losses(raws), expected, rtol=1e-4, atol=1e-6)
    trainee.runtime.close()


def lists_job(plan: int, rows: int) -> tuple[dict[str, Any], RAPJobSpec, FeatureGraph]:
    """Plan 0 with lists of mean length 3 that nothing shortens, or plan 4: all ops, weights."""
    document = plan_job(plan, max_rows=1000, batch_size=rows, dim=16)
    if plan == 0:
        document["metadata"]["annotations"][MEAN_LENGTH] = "3"
        document["spec"]["features"][1]["ops"].pop()
    spec = RAPJob.model_validate(document).spec
    graph, problems = compile_features(spec)
    assert graph is not None, problems
    return document, spec, graph


@pytest.mark.parametrize(
    ("plan", "rows", "pinned"), [(0, ROWS, False), (0, ROWS, True), (4, 64, False)], ids=["lists", "pinned", "plan-4"]
)
def test_lists_of_ids_train_as_in_the_eager_runtime(
    world: World, plan: int, rows: int, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the training thread or, as where they are large, in one of their own; as they are or packed."""
    document, spec, graph = lists_job(plan, rows)
    raws = [synthetic_batch(document, rows, seed=i + 1) for i in range(5)]
    raws[2] = synthetic_batch(document, rows - 7, seed=30)
    if plan == 0:  # the first batches have one id a row, and are captured so; one of them waits when lists turn up
        single, _, _ = job()
        raws[:2] = [synthetic_batch(single, rows, seed=i + 1) for i in range(2)]
    if pinned:
        monkeypatch.setattr("rap_trainer.captured.uploads.LARGE_BYTES", 0)
        raws = [raw.map(lambda tensor: tensor.pin_memory()) for raw in raws]
    evaluator = Evaluator(EvaluationSpec(), world.device)
    expected = eager(build(spec, graph, world), graph, evaluator, world).losses(raws)
    mine = build(spec, graph, world)
    trainee = captured(mine, graph, None, world, batch_size=rows)
    got = trainee.losses(raws[:3]) + trainee.losses(raws[3:])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert trainee.runtime._form is Form.LISTS
    trainee.runtime.close()


def longer(raw: RawBatch, graph: FeatureGraph, times: int) -> RawBatch:
    """The same rows with every list so many times as long."""
    columns = {
        name: replace(
            column,
            values_N=column.values_N.repeat_interleave(times),
            nulls_N=None if column.nulls_N is None else column.nulls_N.repeat_interleave(times),
            lengths_B=None if column.lengths_B is None else column.lengths_B * times,
        )
        if graph.columns[name].is_list
        else column
        for name, column in raw.columns.items()
    }
    return replace(raw, columns=columns, blocks=())


def test_lists_of_changing_lengths_take_captured_sizes_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is captured again once there is a size for each, and whichever a step takes, it trains on all its ids."""
    monkeypatch.setattr("rap_trainer.captured.sizes.Choice.__init__.__defaults__", (2,))
    document, spec, graph = lists_job(0, ROWS)
    raws = [synthetic_batch(document, ROWS, seed=i + 1) for i in range(4)]
    raws += [longer(raw, graph, 2) for raw in raws[:2]]
    order = [0, 1, 4, 5, 0, 1, 2, 3, 0, 4, 1, 2, 3, 5, 4, 0]  # up at once, down after two short ones
    evaluator = Evaluator(EvaluationSpec(), world.device)
    fed = [raws[i] for i in order]
    expected = eager(build(spec, graph, world), graph, evaluator, world).losses(fed)
    trainee = captured(build(spec, graph, world), graph, None, world)
    runtime = trainee.runtime
    numbers, pending, got = [], None, []
    for raw in [*fed, None]:
        upcoming = None if raw is None else runtime.prepare(raw)
        if pending is not None:
            state = runtime.train(pending)
            got.append(float(state.loss_sum) / state.raw.global_rows)
            numbers.append(runtime.size.number)
        pending = upcoming
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    small, large = numbers[0], numbers[2]
    assert len(runtime._sizes) == 2
    assert [number == large for number in numbers] == [i in (2, 3, 4, 9, 10, 13, 14, 15) for i in range(len(order))]
    assert set(numbers) == {small, large}
    runtime.close()


def test_a_step_takes_the_graphs_for_fewer_ids_if_its_batch_fits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a batch holds, it trains on all its ids; and twenty captures hold no more memory than one."""
    monkeypatch.setattr("rap_trainer.captured.room.LEAST_REST", 1)
    monkeypatch.setattr("rap_trainer.captured.room.SHRUNK", 1.0)
    monkeypatch.setattr("rap_trainer.captured.room.WINDOWS", (3, 3))
    document, spec, graph = lists_job(0, ROWS)
    raws = [synthetic_batch(document, ROWS, seed=i + 1) for i in range(6)]
    raws.sort(key=lambda raw: sum(column.values_N.numel() for column in raw.columns.values()), reverse=True)
    order = [0, 1, *[4, 5] * 6, 0, 4, 0, 5, 4, 2, 5]
    evaluator = Evaluator(EvaluationSpec(), world.device)
    fed = [raws[i] for i in order]
    expected = eager(build(spec, graph, world), graph, evaluator, world).losses(fed)
    trainee = captured(build(spec, graph, world), graph, None, world)
    runtime = trainee.runtime
    fitting, taken = runtime._fitting, []
    fitting._waits = True  # so that what a step takes does not depend on how long a capture takes
    choose = fitting.graphs

    def chosen(size: Size, slot: Slot, *, filled_now: bool) -> CapturedSteps:
        graphs: CapturedSteps = choose(size, slot, filled_now=filled_now)
        taken.append(size.fitted is not None and graphs is size.fitted.graphs)
        return graphs

    monkeypatch.setattr(fitting, "graphs", chosen)
    torch.testing.assert_close(trainee.losses(fed), expected, rtol=1e-4, atol=1e-6)
    assert all(taken[8:14])  # the short ones
    assert not taken[14]  # more ids than any of the batches before
    held = []
    for window in (Window.OUTPUT_DIST, Window.EMB_FWD) * 12:
        runtime.switch(Schedule.uniform(runtime.num_kernels, window))
        runtime.fit()
        assert runtime.size.fitted is not None
        torch.cuda.synchronize()
        held.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert held[4:] == held[3:-1], held
    runtime.close()


def test_twenty_changes_of_size_hold_no_more_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rap_trainer.captured.sizes.Choice.__init__.__defaults__", (1,))
    document, spec, graph = lists_job(0, ROWS)
    short = synthetic_batch(document, ROWS, seed=1)
    trainee = captured(build(spec, graph, world), graph, None, world)
    trainee.losses([short, longer(short, graph, 2)] * 3)
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    trainee.losses([short, longer(short, graph, 2)] * 10)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_reserved() == reserved
    trainee.runtime.close()
