"""Memory of a stream's pieces is used again once nobody looks at it, and never before."""

from __future__ import annotations

import threading

import numpy as np
import torch
from rap_trainer.stream.kept_memory import LEAST_BYTES, KeptMemory

NUM = LEAST_BYTES // 8


def test_a_block_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    memory = KeptMemory()
    values = memory.array(NUM, np.int64)
    address = values.ctypes.data
    row = torch.from_numpy(values.reshape(2, -1))[1, 5:9]
    del values
    other = memory.array(NUM, np.int64)
    assert other.ctypes.data != address
    del row
    assert memory.array(NUM - 7, np.int64).ctypes.data == address


def test_a_much_smaller_array_does_not_take_a_large_block() -> None:
    memory = KeptMemory()
    large = memory.array(8 * NUM, np.int64)
    address = large.ctypes.data
    del large
    small = memory.array(NUM, np.int64)
    assert small.ctypes.data != address
    assert memory.array(8 * NUM, np.float64).ctypes.data == address


def test_no_more_is_held_than_allowed() -> None:
    memory = KeptMemory(most_free_bytes=2 * LEAST_BYTES)
    arrays = [memory.array(NUM, np.int64) for _ in range(5)]
    addresses = {array.ctypes.data for array in arrays}
    arrays.clear()
    assert sum(block.nbytes for block in memory._free) == 2 * LEAST_BYTES
    assert {block.ctypes.data for block in memory._free} < addresses


def test_threads_that_take_and_drop_at_once_never_share_a_block() -> None:
    memory = KeptMemory(most_free_bytes=4 * NUM * 8)
    faults: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            array = memory.array(NUM, np.int64)
            array[::1024] = number
            if (array[::1024] != number).any():
                faults.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(memory._free) <= len(threads)
