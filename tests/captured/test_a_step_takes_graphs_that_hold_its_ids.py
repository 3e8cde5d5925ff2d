"""Which graphs a step with lists takes, and when others are captured. With stand-ins for graphs; on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_trainer.captured.beside import yielding
from rap_trainer.captured.fitting import Fitting
from rap_trainer.captured.jagged_inputs import JaggedInputs
from rap_trainer.captured.list_exchange import Lists
from rap_trainer.captured.raw_layout import raw_layout
from rap_trainer.captured.room import WINDOWS
from rap_trainer.captured.sizes import Fitted, Size
from rap_trainer.captured.slots import Slot
from rap_trainer.plans import plan_job

B, PLACES = 4, 1000


class Graphs:
    """Knows whether it was given back."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Bench:
    """A size of one feature, what fills its slots, and a capturing thread that works when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rap_trainer.captured.room.LEAST_REST", 100)
        graph, _ = compile_features(RAPJob.model_validate(plan_job(0, max_rows=100, dim=8)).spec)
        assert graph is not None
        lists = [Lists(ids_N=torch.zeros(PLACES, dtype=torch.int64), lengths=torch.zeros(B, dtype=torch.int32),
                       weights_N=None) for _ in range(2)]  # fmt: skip
        self.lengths = [each.lengths for each in lists]
        inputs = [JaggedInputs(("a",), each, world_size=1, batch_size=B, spare_rows=2, tail_rows=7) for each in lists]
        slots = tuple(cast(Slot, SimpleNamespace(index=i, inputs=each)) for i, each in enumerate(inputs))
        nothing = cast(Any, SimpleNamespace())
        self.size = Size(
            number=0, layout=raw_layout(graph, batch_size=B, capacities={}), lists=nothing, slots=(slots[0], slots[1]),
            preprocessor=nothing, pinned=(), step=nothing, graphs=cast(Any, Graphs()),
        )  # fmt: skip
        self.asked: list[Callable[[], None]] = []
        self.drained = 0
        self.closed: list[Any] = []
        self.refuses: Exception | None = None
        builder = SimpleNamespace(fitted=self.fitted, beside=self)
        self.fitting = Fitting(cast(Any, builder), waits=False, drain=self.drain)

    def fitted(self, size: Size, step: Any, num_ids: int) -> Fitted | None:
        if self.refuses is not None:
            raise self.refuses
        return Fitted(num_ids=num_ids, slots=size.slots, step=step, graphs=cast(Any, Graphs()))

    def begin(self, work: Callable[[], Fitted | None]) -> Future[Fitted | None]:
        future: Future[Fitted | None] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except RuntimeError as error:
                future.set_exception(error)

        self.asked.append(run)
        return future

    def run(self, work: Callable[[], None]) -> None:
        """Behind what was begun."""
        while self.asked:
            self.asked.pop(0)()
        work()

    def close_behind(self, graphs: Any) -> None:
        self.closed.append(graphs)

    def drain(self) -> None:
        self.drained += 1

    def fill(self, slot: int, held: int) -> None:
        self.lengths[slot].copy_(torch.tensor([held, 0, 0, 0]))
        inputs = self.size.slots[slot].inputs
        assert isinstance(inputs, JaggedInputs)
        inputs.fill()

    def steps(self, held: list[int]) -> list[bool]:
        """Whether each step took graphs for fewer ids; the step before has filled its slot."""
        found = []
        for i, each in enumerate(held):
            self.fill(i % 2, each)
            graphs = self.fitting.graphs(self.size, self.size.slots[i % 2], filled_now=False)
            found.append(graphs is not self.size.graphs)
            assert not found[-1] or (self.size.fitted is not None and each <= self.size.fitted.num_ids)
        return found


def test_a_step_goes_on_with_all_room_until_others_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert bench.steps([500] * (WINDOWS[0] + 3)) == [False] * (WINDOWS[0] + 3)
    (run,) = bench.asked  # asked once, however long it takes
    run()
    assert bench.steps([500, 501, 700, 500]) == [True, True, False, True]
    assert bench.drained == 1  # the first time; from then on each step tells what the next one asks for


def test_counts_that_are_not_told_by_the_step_before_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.fill(0, 500)
    bench.fitting.now(bench.size)
    assert bench.steps([500, 500]) == [True, True]
    assert bench.drained == 1
    bench.fill(0, 600)
    graphs = bench.fitting.graphs(bench.size, bench.size.slots[0], filled_now=True)
    assert graphs is bench.size.graphs
    assert bench.drained == 2


def test_a_count_that_never_comes_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rap_trainer.captured.jagged_inputs.UNTOLD_S", 0.0)
    bench = Bench(monkeypatch)
    inputs = bench.size.slots[0].inputs
    assert isinstance(inputs, JaggedInputs)
    inputs.expect()
    assert inputs.last_filled == 0
    with pytest.raises(RuntimeError, match="how many ids a batch holds"):
        inputs.num_filled()


def test_graphs_of_another_schedule_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.steps([500] * WINDOWS[0])
    bench.asked.pop()()
    bench.size.step = cast(Any, SimpleNamespace())
    assert bench.steps([500, 500]) == [False, False]
    assert len(bench.closed) == 1
    assert bench.size.fitted is None


def test_steps_go_on_where_a_capture_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(monkeypatch)
    bench.refuses = RuntimeError("CUDA out of memory")
    bench.steps([500] * WINDOWS[0])
    bench.asked.pop()()
    assert bench.steps([500, 500]) == [False, False]
    assert "steps go on with room for all ids: CUDA out of memory" in caplog.text


def test_nothing_is_captured_for_slots_that_hold_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.fitting.now(bench.size)
    assert bench.size.fitted is None
    bench.refuses = RuntimeError("CUDA out of memory")
    bench.fill(0, 300)
    bench.fitting.now(bench.size)  # no reason to end
    assert bench.size.fitted is None


def test_what_is_captured_now_holds_both_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.fill(0, 300)
    bench.fill(1, 420)
    bench.fitting.now(bench.size)
    assert bench.size.fitted is not None
    assert 420 <= bench.size.fitted.num_ids < 450
    assert bench.size.smallest_slots == bench.size.fitted.slots
    bench.fill(0, 600)  # more than that: what else is captured must hold it
    assert bench.size.smallest_slots is bench.size.slots
    graphs = bench.size.fitted.graphs
    bench.size.close()
    assert cast(Any, graphs).closed
    assert cast(Any, bench.size.graphs).closed


def test_captures_that_overlap_leave_the_interpreter_as_it_was() -> None:
    before = sys.getswitchinterval()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(yielding())
        second.enter_context(yielding())
        first.close()
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
