"""What the bench reports of timelines and options: pure parts, no GPU."""

from __future__ import annotations

import pytest
from rap_trainer.bench.run import DEFAULT_CASES, options
from rap_trainer.bench.timing import Kernel, totals_by_name, union_us
from rap_trainer.captured.schedule import Window


def kernel(start: float, us: float, name: str = "k") -> Kernel:
    return Kernel(start_us=start, us=us, name=name)


@pytest.mark.parametrize(
    ("kernels", "busy"),
    [
        ([], 0.0),
        ([kernel(0, 5), kernel(7, 1)], 6.0),
        ([kernel(0, 5), kernel(3, 4)], 7.0),
        ([kernel(0, 9), kernel(1, 2), kernel(10, 1)], 10.0),
    ],
    ids=["none", "apart", "overlapping", "nested"],
)
def test_busy_time_is_the_union_of_the_kernels(kernels: list[Kernel], busy: float) -> None:
    assert union_us(kernels) == busy


def test_totals_are_by_name_costly_first() -> None:
    assert totals_by_name([kernel(0, 1, "a"), kernel(1, 5, "b"), kernel(2, 2, "a")]) == [("b", 1, 5), ("a", 2, 3)]


def test_the_default_cases_name_windows_that_exist() -> None:
    (schedules,) = [case for case in options([]).cases.split(",") if case.startswith("rap:")]
    for place in schedules.removeprefix("rap:").split("+"):
        window, _, programs = place.partition("/")
        assert Window(window)
        assert int(programs) >= 0
    assert options(["--plan", "3"]).cases == DEFAULT_CASES
    with pytest.raises(SystemExit):
        options(["--plan", "5"])
