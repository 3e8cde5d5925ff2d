"""The queue: each name once, one worker a name, delays that end and double."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st
from rap_operator.workqueue import WorkQueue
from servers.waiting import wait_until


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def drained(queue: WorkQueue[str]) -> list[str]:
    found = []
    while (key := queue.get(timeout_s=0)) is not None:
        found.append(key)
        queue.done(key)
    return found


def test_a_name_waits_once_however_often_it_is_added() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert drained(queue) == ["a", "b"]


def test_names_that_go_first_pass_the_others_but_do_not_starve_them() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("old-1", "old-2"):
        queue.add(key)
    for number in range(12):
        queue.add(f"new-{number}", goes_first=True)
    assert queue.depth == 14
    new = [f"new-{number}" for number in range(12)]
    assert drained(queue) == [*new[:10], "old-1", *new[10:], "old-2"]


def test_a_name_that_waits_among_the_others_can_be_moved_to_the_front_and_is_taken_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "c"):
        queue.add(key)
    for _ in range(2):
        queue.add("c", goes_first=True)
    assert queue.depth == 3
    assert drained(queue) == ["c", "a", "b"]
    queue.add("c")
    assert drained(queue) == ["c"]


def test_a_name_added_while_worked_on_comes_again_and_not_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert queue.get(timeout_s=0) is None
    queue.done("a")
    assert drained(queue) == ["a"]


def test_of_several_delays_the_earliest_counts() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add_after("a", 100)
    queue.add_after("a", 10)
    queue.add_after("a", 50)
    assert drained(queue) == []
    clock.now_s = 10
    assert drained(queue) == ["a"]
    clock.now_s = 200
    assert drained(queue) == []


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.integers(1, 20), st.booleans()),
            st.integers(1, 15),
        ),
        max_size=40,
    )
)
def test_a_delay_that_replaces_the_earlier_ones_counts_alone_and_the_others_by_the_earliest(
    script: list[tuple[str, int, bool] | int],
) -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    due: dict[str, float] = {}
    for act in script:
        if isinstance(act, int):
            clock.now_s += act
            ready = {key for key, at_s in due.items() if at_s <= clock.now_s}
            assert set(drained(queue)) == ready
            due = {key: at_s for key, at_s in due.items() if key not in ready}
        else:
            key, delay_s, replaces = act
            queue.add_after(key, delay_s, replaces=replaces)
            wish_s = clock.now_s + delay_s
            due[key] = wish_s if replaces else min(wish_s, due.get(key, wish_s))
    assert len(queue._delayed) <= len(script)


def test_failures_back_off_by_doubling_up_to_a_limit_and_success_forgets() -> None:
    queue: WorkQueue[str] = WorkQueue(min_backoff_s=1, max_backoff_s=10)
    assert [queue.add_failed("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert queue.add_failed("a", at_least_s=30) == 30
    queue.forget("a")
    assert queue.add_failed("a") == 1


def test_the_oldest_entry_tells_how_long_the_queue_has_stood_still() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    assert queue.oldest_s() == 0
    queue.add("a")
    clock.now_s = 7
    assert queue.oldest_s() == 7
    queue.get()
    clock.now_s = 8
    assert queue.oldest_s() == 1
    queue.done("a")
    assert queue.oldest_s() == 0


def test_closing_wakes_a_waiting_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    worker = threading.Thread(target=lambda: got.append(queue.get()))
    worker.start()
    queue.close()
    worker.join(10)
    assert got == [None]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 4))
def test_no_name_is_worked_on_twice_at_a_time_and_none_is_lost(added: list[tuple[str, bool]], num_workers: int) -> None:
    queue: WorkQueue[str] = WorkQueue()
    working: set[str] = set()
    done_after: dict[str, int] = {}
    lock = threading.Lock()
    last_added = {key: index for index, (key, _) in enumerate(added)}
    trouble: list[str] = []

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                if key in working:
                    trouble.append(key)
                working.add(key)
            with lock:
                working.discard(key)
                done_after[key] = len(added)
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    for key, goes_first in added:
        queue.add(key, goes_first=goes_first)
    wait_until(lambda: not queue.depth and not queue.oldest_s(), limit_s=30, what="an empty queue", every_s=0.001)
    queue.close()
    for worker in workers:
        worker.join(10)
    assert trouble == []
    assert set(done_after) == set(last_added)
