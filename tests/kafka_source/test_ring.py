"""The ring gives room back when the last buffer over it dies, in whatever order, and never before."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
import torch
from rap_trainer.stream.kafka.pinning import pin
from rap_trainer.stream.kafka.ring import SLOTS, RingReader, RingWriter, Room, create

SLOT = 4096


@pytest.fixture
def ring() -> Iterator[tuple[RingWriter, RingReader]]:
    file = create(SLOTS * SLOT)
    yield RingWriter(file), RingReader(file)
    os.close(file)


def filled(writer: RingWriter, size: int, byte: int) -> Room | None:
    room = writer.reserve(size)
    if room is not None:
        writer.view(room)[:] = byte
    return room


def test_a_slot_is_free_when_the_last_view_of_it_is_gone(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    rooms = [filled(writer, SLOT, byte) for byte in range(SLOTS)]
    buffers = [reader.buffer(room) for room in rooms if room is not None]
    assert len(buffers) == SLOTS
    assert reader.held_ratio == 1
    array = pa.Array.from_buffers(pa.uint8(), SLOT, [None, buffers[0]])
    del buffers[0]
    assert writer.reserve(1) is None, "an array holds it"
    assert array.to_pylist() == [0] * SLOT
    del array
    assert writer.reserve(1) == Room(0, 1)
    del buffers[9]
    del buffers[11]
    assert writer.reserve(2 * SLOT) is None, "two free ones, but not side by side"
    del buffers[9]
    assert writer.reserve(2 * SLOT) is not None
    assert [buffer.to_pybytes()[0] for buffer in buffers[:9]] == list(range(1, 10))


def test_what_never_fits_is_an_error(ring: tuple[RingWriter, RingReader]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        ring[0].reserve(SLOTS * SLOT + 1)


def test_no_byte_is_lost_or_overwritten_under_random_lifetimes(ring: tuple[RingWriter, RingReader]) -> None:
    writer, reader = ring
    choice = random.Random(1)
    held: list[tuple[int, int, pa.Buffer]] = []
    refused = 0
    for number in range(1000):
        size, byte = choice.randint(1, 5 * SLOT), number % 251
        while (room := filled(writer, size, byte)) is None:
            refused += 1
            held.pop(choice.randrange(len(held)))
        held.append((size, byte, reader.buffer(room)))
        assert all(kept.to_pybytes() == bytes([value]) * length for length, value, kept in held)
    assert refused > 100
    held.clear()
    assert reader.held_ratio == 0
    assert writer.reserve(SLOTS * SLOT) is not None


def test_with_several_readers_a_slot_is_free_when_all_of_them_are_done() -> None:
    file = create(SLOTS * SLOT)
    try:
        writer, readers = RingWriter(file, readers=3), [RingReader(file, reader=number) for number in range(3)]
        room = writer.reserve(SLOTS * SLOT)
        assert room is not None
        buffers = [reader.buffer(room) for reader in readers]
        while buffers:
            assert writer.reserve(1) is None
            del buffers[random.Random(len(buffers)).randrange(len(buffers))]
        assert writer.reserve(SLOTS * SLOT) is not None
    finally:
        os.close(file)


class Driver:
    """What pinning asks of CUDA."""

    def __init__(self, answer: int) -> None:
        self._answer = answer
        self.pinned: dict[int, int] = {}
        self.calls = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls += 1
        if self._answer == 0:
            self.pinned[address] = size
        return self._answer

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that only this fixture's CUDA knows."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return torch.device("cuda", 1)


def test_a_ring_is_pinned_for_a_gpu_as_long_as_it_is_mapped(gpu: torch.device) -> None:
    file, driver = create(SLOTS * SLOT), Driver(0)
    writer, reader = RingWriter(file), RingReader(file)
    os.close(file)
    assert pin(reader, gpu, runtime=driver)
    room = filled(writer, SLOT, 1)
    assert room is not None
    buffer = reader.buffer(room)
    ((address, size),) = driver.pinned.items()
    assert address <= buffer.address
    assert buffer.address + buffer.size <= address + size
    assert size == writer.capacity
    del reader
    gc.collect()
    assert driver.pinned, "a buffer is left"
    del buffer
    gc.collect()
    assert not driver.pinned


def test_what_a_driver_refuses_to_pin_is_read_all_the_same(gpu: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    file = create(SLOTS * SLOT)
    reader = RingReader(file)
    os.close(file)
    assert not pin(reader, gpu, runtime=Driver(2))
    assert "not pinned: CUDA error 2" in caplog.text


def test_without_a_gpu_nothing_is_pinned(ring: tuple[RingWriter, RingReader]) -> None:
    driver = Driver(0)
    assert not pin(ring[1], torch.device("cpu"), runtime=driver)
    assert driver.calls == 0


@pytest.mark.gpu
def test_columns_in_a_ring_go_to_a_gpu_without_waiting() -> None:
    file = create(64 << 20)
    writer, reader = RingWriter(file), RingReader(file)
    os.close(file)
    device = torch.device("cuda", 0)
    assert pin(reader, device)
    room = filled(writer, 32 << 20, 7)
    assert room is not None
    cuda: Any = torch.cuda
    column = torch.from_numpy(reader.memory[: room.size])
    assert column.is_pinned()
    copied = cuda.Event()
    cuda._sleep(
        500_000_000
    )  # cycles of the stream's time, some tenths of a second: the copy waits for it, the host does not
    copy = column.to(device, non_blocking=True)
    copied.record()
    assert not copied.query()
    assert bool((copy == 7).all())
    del column, reader
    gc.collect()
