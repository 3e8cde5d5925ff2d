"""Uploads, with a device that is no GPU: what arrives, in which thread, and when a fault or a lack of room is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rap_contract.graph import FeatureGraph, compile_features
from rap_contract.job import RAPJob
from rap_trainer.batch import Column, RawBatch
from rap_trainer.captured import uploads
from rap_trainer.captured.copy_rows import Copier
from rap_trainer.captured.preprocess import FusedPreprocessor
from rap_trainer.captured.raw import Overflow, RawBuffer
from rap_trainer.captured.raw_layout import raw_layout
from rap_trainer.captured.uploads import NUM_PINNED, Uploads
from rap_trainer.plans import plan_job, synthetic_batch

CPU = torch.device("cpu")
DOCUMENT = plan_job(0, max_rows=100, dim=8)


class Event:
    """Of a device that is always done; remembers which threads recorded it."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def record(self, stream: object = None) -> None:
        self.threads.append(threading.current_thread().name)

    def synchronize(self) -> None:
        return


class Device:
    """The parts of a preprocessor that an upload touches, and its pinned buffers."""

    def __init__(self, graph: FeatureGraph) -> None:
        layout = raw_layout(graph, batch_size=32, capacities={"cat_3": 64})
        self.raw = tuple(RawBuffer(layout, CPU) for _ in range(2))
        self.pinned = [RawBuffer(layout, CPU) for _ in range(NUM_PINNED)]
        self.arrived, self.consumed = (tuple(Event() for _ in range(2)) for _ in range(2))

    @property
    def preprocessor(self) -> FusedPreprocessor:
        return cast(FusedPreprocessor, self)


@pytest.fixture(scope="module")
def graph() -> FeatureGraph:
    graph, problems = compile_features(RAPJob.model_validate(DOCUMENT).spec)
    assert graph is not None, problems
    return graph


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    for name, fake in {
        "Stream": lambda device: SimpleNamespace(cuda_stream=0),
        "Event": Event,
        "set_device": lambda device: None,
        "stream": lambda stream: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(uploads, "Copier", lambda stream: Copier(None))
    each = Uploads(CPU)
    yield each
    each.close()


def batch(seed: int, elements: int = 32) -> RawBatch:
    """Of 32 rows, whose first has more of cat_3 than one element, and no null flags there."""
    raw = synthetic_batch(DOCUMENT, 32, seed=seed)
    lengths_B = torch.ones(32, dtype=torch.int32)
    lengths_B[0] = elements - 31
    column = Column(values_N=torch.arange(elements) + seed, lengths_B=lengths_B)
    return replace(raw, columns={**raw.columns, "cat_3": column})


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_batches_arrive_whole_whichever_thread_brings_them(
    sent: Uploads, graph: FeatureGraph, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", 0 if large else 1 << 40)
    device = Device(graph)
    for number in range(7):
        raw, slot = batch(number, elements=32 + number), number % 2
        sent.begin(raw, slot, device.preprocessor, device.pinned)
        sent.settle()
        held = device.raw[slot]
        assert torch.equal(held.part("cat_3", "values")[: 32 + number], raw.columns["cat_3"].values_N)
        assert torch.equal(held.part("cat_4", "values")[:32], raw.columns["cat_4"].values_N)
    names = {name.partition("_")[0] for event in device.arrived for name in event.threads}
    assert names == ({"rap-upload"} if large else {threading.current_thread().name})
    assert [len(event.threads) for event in device.arrived] == [4, 3]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_batch_without_room_is_told_where_it_is_begun(
    sent: Uploads, graph: FeatureGraph, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", 0 if large else 1 << 40)
    device = Device(graph)
    with pytest.raises(Overflow, match="cat_3 65"):
        sent.begin(batch(1, elements=65), 0, device.preprocessor, device.pinned)
    sent.settle()
    assert not device.arrived[0].threads


def test_a_copy_that_fails_in_its_thread_is_told_before_the_step_that_needs_it(
    sent: Uploads, graph: FeatureGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGE_BYTES", 0)

    def fails(*given: Any) -> None:
        raise RuntimeError("a copy to the device failed: unplugged")

    device = Device(graph)
    monkeypatch.setattr(RawBuffer, "receive", fails)
    sent.begin(batch(1), 1, device.preprocessor, device.pinned)
    sent.enqueued(0)
    with pytest.raises(RuntimeError, match="unplugged"):
        sent.enqueued(1)
    sent.settle()  # told once
