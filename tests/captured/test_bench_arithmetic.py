"""What the bench reports of timelines and options: pure parts, no GPU."""

from __future__ import annotations

import argparse

import pytest
import torch
from rap_trainer import cli
from rap_trainer.bench.cases import DEFAULT_CASES, add_options
from rap_trainer.bench.command import combinations, rank_arguments
from rap_trainer.bench.report import table
from rap_trainer.bench.run import options
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


def test_the_report_compares_only_within_a_plan_batch_size_and_number_of_gpus() -> None:
    common = {"plan": 0, "batch": 4096, "low_ms": 0.4, "high_ms": 0.6}
    text = table(
        [
            {**common, "gpus": 1, "case": "setup"},
            {**common, "gpus": 1, "case": "captured:auto", "ms": 0.5, "joules": 0.2},
            {**common, "gpus": 1, "case": "rap:output_dist/0", "ms": 0.625},
            {**common, "gpus": 2, "case": "loop", "ms": 8.0},
        ]
    )
    first, second = text.split("\n\nPlan 0, batch 4096 a GPU, 2 GPUs")
    assert "| captured:auto | 0.500 | 0.400-0.600 | 8,192,000 | 100.0% |" in first
    assert "| rap:output_dist/0 | 0.625 | 0.400-0.600 | 6,553,600 | 80.0% | 0.125 |" in first
    assert "setup" not in text
    assert "| loop | 8.000 | 0.400-0.600 | 1,024,000 |  |  |" in second


def test_rap_bench_runs_every_combination_and_refuses_gpus_that_are_not_there() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    chosen = parser.parse_args(["--plan", "0", "2", "--batch", "4096", "--cases", "loop"])
    assert combinations(chosen, 2) == [(0, 4096, 1), (0, 4096, 2), (2, 4096, 1), (2, 4096, 2)]
    assert options(rank_arguments(chosen, 2, 4096)).plan == 2
    with pytest.raises(ValueError, match="4 GPUs are wanted, this machine has 2"):
        combinations(parser.parse_args(["--gpus", "4"]), 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_rap_bench_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--plan", "0", "1"]) == 2
    assert "this machine has none" in capsys.readouterr().err
