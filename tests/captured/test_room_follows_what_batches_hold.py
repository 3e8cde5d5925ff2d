"""For how many ids of lists a step is captured, from what batches have held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.captured.lists import PLACE_IDS
from rap_trainer.captured.room import LEAST_REST, OUTGROWING, SPARE, WINDOWS, Room

PLACES = 8 * LEAST_REST
FEW = 2 * LEAST_REST


def after(room: Room, held: list[int], current: int | None = None) -> list[int]:
    """What is captured, one batch after the other."""
    found = []
    for each in held:
        wanted = room.add(each, current)
        if wanted is not None:
            found.append(wanted)
            current = wanted
    return found


def test_room_is_made_for_nearly_all_batches_of_a_window_and_once() -> None:
    held = [FEW] * (WINDOWS[0] - 1) + [PLACES]
    (wanted,) = after(Room(PLACES), held)
    assert FEW <= wanted <= SPARE * FEW + PLACE_IDS
    assert wanted % PLACE_IDS == 0
    assert len(after(Room(PLACES), held * 40)) == 1


def test_nothing_is_captured_where_little_would_be_saved() -> None:
    assert after(Room(PLACES), [PLACES - LEAST_REST] * 200) == []
    assert Room(PLACES).over(PLACES - LEAST_REST // 2) is None
    assert Room(PLACES).over(0) is None


def test_longer_lists_get_more_room_and_shorter_ones_less() -> None:
    first, longer, shorter = after(Room(PLACES), [FEW] * 16 + [2 * FEW] * 32 + [FEW] * 96)
    assert first < FEW * 1.01 < longer
    assert shorter == first


def test_windows_grow_so_that_captures_become_rare() -> None:
    swinging = [FEW if number // 40 % 2 else 2 * FEW for number in range(20_000)]
    assert len(after(Room(PLACES), swinging)) < 20


@given(st.lists(st.integers(1, PLACES), min_size=WINDOWS[0], max_size=WINDOWS[0]))
def test_at_least_fifteen_of_sixteen_batches_that_it_was_made_from_fit(held: list[int]) -> None:
    for wanted in after(Room(PLACES), held):
        assert sum(number > wanted for number in held) <= len(held) // OUTGROWING
        assert PLACES - wanted >= LEAST_REST
