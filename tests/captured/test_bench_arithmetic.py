"""What the bench reports of timelines and options: pure parts, no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rap_trainer import cli
from rap_trainer.bench import command
from rap_trainer.bench.cases import DEFAULT_CASES, add_options
from rap_trainer.bench.chart import dot_chart
from rap_trainer.bench.command import gpu_counts, rank_command
from rap_trainer.bench.measure import Effort
from rap_trainer.bench.report import page, table
from rap_trainer.bench.results import groups_of
from rap_trainer.bench.run import options
from rap_trainer.bench.timing import Kernel, totals_by_name, union_us
from rap_trainer.bench.units import Unit, from_argument, remaining, to_argument, units_of
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


COMMON = {"plan": 0, "batch": 4096, "low_ms": 0.4, "high_ms": 0.6, "steps": 40}
LINES: list[dict[str, Any]] = [
    {"case": "run", "date": "2026-11-30", "cpus": 16, "command": "rap bench"},
    {**COMMON, "gpus": 1, "case": "setup", "device": "NVIDIA H200", "torch": "2.11.0"},
    {**COMMON, "gpus": 1, "case": "loop", "ms": 5.0, "losses": [0.5, 0.4]},
    {**COMMON, "gpus": 1, "case": "pipeline-ideal", "ms": 6.0, "losses": []},
    {**COMMON, "gpus": 1, "case": "sequential", "ms": 25.0, "losses": [0.5, 0.4]},
    {**COMMON, "gpus": 1, "case": "captured:auto", "ms": 0.5, "joules": 0.2, "losses": [0.5, 0.402]},
    {**COMMON, "gpus": 1, "case": "rap:inline/0", "ms": 0.7},
    {**COMMON, "gpus": 1, "case": "rap:output_dist/0", "ms": 0.625},
    {**COMMON, "gpus": 1, "case": "compile", "error": "no form\nof this"},
    {**COMMON, "gpus": 1, "case": "captured-modules", "ms": 2.1},
    {**COMMON, "gpus": 1, "case": "cpu", "ms": 1.0, "discarded": "the machine was busy"},
    {**COMMON, "gpus": 2, "case": "loop", "ms": 8.0},
]


def test_the_report_compares_only_within_a_plan_batch_size_and_number_of_gpus() -> None:
    text = table(LINES)
    first, second = text.split("### Plan 0, batch 4096, 2 GPUs")
    assert "| captured:auto | 0.500 | 0.400-0.600 | 40 | 8,192,000 | 100.0% | 50.0x |" in first
    assert "| **rap:output_dist/0** | 0.625 | 0.400-0.600 | 40 | 6,553,600 | 80.0% | 40.0x | 0.125 |" in first
    assert "| sequential | 25.000 | 0.400-0.600 | 40 | 163,840 | 20.0% | 1.0x | 20 |" in first, "stock's own ideal"
    assert "| compile | - | no form |" in first
    assert "| cpu | - | discarded: the machine was busy |" in first
    assert "| 5e-03 |" in first, "how far the captured losses are from the loop's"
    assert "| loop | 8.000 | 0.400-0.600 | 40 | 1,024,000 | 100.0% |  |" in second


def test_the_page_says_where_it_was_measured_what_the_goals_are_and_where_the_gain_comes_from() -> None:
    text = page(LINES, "bench.svg")
    assert "Device: NVIDIA H200; torch 2.11.0" in text
    assert "2026-11-30, 16 CPU cores; commands:\n\n    rap bench" in text
    assert "| rap over sequential, mean of plans 0-3 | 10x | 40.0x (1 of 2 groups) |" in text
    assert "| rap above its own ideal, plans 0-3, worst | 1 % | 25.0% |" in text
    assert "| fused preprocessing inline | 0.700 | 3.00x |" in text, "after the last rung that was measured"
    assert "![Milliseconds a step by case](bench.svg)" in text


def test_the_chart_has_a_dot_for_each_figure() -> None:
    picture = ElementTree.fromstring(dot_chart(groups_of(LINES)))
    dots = [one for one in picture.iter("{http://www.w3.org/2000/svg}circle") if len(one)]
    assert [dot[0].text for dot in dots] == [
        "sequential: 25.000 ms",
        "stock TorchRec's ideal: 5.000 ms",
        "our ideal: 0.500 ms",
        "rap: 0.625 ms",
        "stock TorchRec's ideal: 8.000 ms",
    ]
    places = [float(dot.get("cx", "")) for dot in dots]
    assert places[0] > places[1] > places[3] > places[2]
    ElementTree.fromstring(dot_chart(()))


def test_rap_bench_runs_on_one_and_all_gpus_and_refuses_those_that_are_not_there() -> None:
    assert gpu_counts(None, 2) == [1, 2]
    assert gpu_counts(None, 1) == [1]
    assert gpu_counts([2], 4) == [2]
    with pytest.raises(ValueError, match="4 GPUs are wanted, this machine has 2"):
        gpu_counts([4], 2)


def test_the_ranks_are_told_their_units_in_an_order_that_shares_batches() -> None:
    chosen = options_of("--plan", "0", "2", "--batch", "4096", "--cases", "loop,rap:inline/0+grad_dist/64")
    units = units_of(chosen.plan, chosen.batch, chosen.cases.split(","))
    assert [(unit.plan, unit.case) for unit in units] == [
        (0, "loop"),
        (0, "rap:inline/0+grad_dist/64"),
        (2, "loop"),
        (2, "rap:inline/0+grad_dist/64"),
    ]
    started = rank_command(units, 2, chosen)
    told = options(started[started.index("rap_trainer.bench") + 1 :])
    assert from_argument(told.units) == units
    assert remaining(units, [units[1], units[0]]) == units[2:]


RANKS = """
import json, sys
units, ruin = json.loads(sys.argv[1]), sys.argv[2]
for plan, batch, case in units:
    line = {"plan": plan, "batch": batch, "unit": case, "case": case}
    if case == "hangs":
        sys.exit(1)
    if case == "fails":
        print(json.dumps({**line, "error": "no"}), flush=True)
        print(json.dumps({**line, "ended": True, "failed": True}), flush=True)
        sys.exit(1)
    print("not a line of ours", flush=True)
    print(json.dumps({**line, "ms": 1.0}), flush=True)
    print(json.dumps({**line, "ended": True}), flush=True)
"""


def test_a_case_that_ruins_or_kills_its_ranks_costs_no_other_case_its_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(units: Sequence[Unit], gpus: int, chosen: object, *, until_s: float | None = None) -> list[str]:
        del chosen, until_s
        return [sys.executable, "-c", RANKS, to_argument(units), str(gpus)]

    monkeypatch.setattr(command, "rank_command", start)
    units = units_of([0], [8], ["a", "fails", "b", "hangs", "c"])
    assert command.run_units(units, 1, argparse.Namespace(), until_s=None)
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(line["case"], "ms" in line) for line in lines] == [
        ("a", True),
        ("fails", False),
        ("b", True),
        ("hangs", False),
        ("c", True),
    ]
    assert lines[3]["error"].startswith("the ranks ended with code 1")
    assert not command.run_units(units[:1], 1, argparse.Namespace(), until_s=None)
    assert command.run_units(units[:1], 1, argparse.Namespace(), until_s=0.0), "its time was up before it began"


@pytest.mark.parametrize(("step_ms", "steps"), [(1.0, 40), (10.0, 40), (34.0, 11), (120.0, 3), (900.0, 1)])
def test_slow_steps_are_measured_fewer_times(step_ms: float, steps: int) -> None:
    effort = Effort(seconds=2.0)
    assert effort.steps(step_ms) == steps
    assert 3 <= effort.equal(step_ms) <= 12
    assert 1 <= effort.profiled(step_ms) <= effort.warm_up(step_ms) <= 8


def options_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_rap_bench_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--plan", "0", "1"]) == 2
    assert "this machine has none" in capsys.readouterr().err
