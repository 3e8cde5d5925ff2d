"""Weak and strong scaling from a bench's lines, and ranks of one host taken for those of several: pure parts, no GPU."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rap_trainer.bench.cases import add_options
from rap_trainer.bench.nodes import as_nodes
from rap_trainer.bench.report import page
from rap_trainer.bench.results import groups_of, strong_scaling, weak_scaling
from rap_trainer.bench.units import from_argument

ROOT = Path(__file__).resolve().parents[2]


def line(gpus: int, batch: int, ms: float, **more: Any) -> dict[str, Any]:
    extremes = {"low_ms": ms, "high_ms": ms}
    return {"plan": 0, "batch": batch, "gpus": gpus, "case": "rap:inline/0", "ms": ms, **extremes, **more}


def test_weak_scaling_is_of_one_batch_a_gpu_and_strong_of_one_batch_in_all() -> None:
    lines = [line(1, 4096, 1.0), line(2, 4096, 1.25), line(4, 4096, 2.0), line(2, 2048, 0.8), line(4, 1024, 0.5)]
    groups = groups_of(lines)
    assert weak_scaling(groups, 0, 4096) == {2: 0.8, 4: 0.5}
    assert strong_scaling(groups, 0, 4096) == {2: 0.625, 4: 0.5}
    assert "| 1 -> 4 GPUs, strong scaling, plan 0, 4096 rows |  | 50.0% |" in page(lines, None)


def test_emulated_nodes_are_groups_of_their_own() -> None:
    groups = groups_of([line(1, 4096, 1.0), line(2, 4096, 1.25), line(2, 4096, 4.0, nodes=2)])
    assert [(group.gpus, group.nodes) for group in groups] == [(1, 1), (2, 1), (2, 2)]
    assert weak_scaling(groups, 0, 4096) == {2: 0.8}
    assert groups[2].name == "plan 0, batch 4096, 2 GPUs as 2 nodes"


def test_scaling_needs_one_gpu_beside_more() -> None:
    assert weak_scaling(groups_of([line(2, 4096, 1.0), line(4, 4096, 1.0)]), 0, 4096) == {}


def test_ranks_of_a_block_are_of_one_host_to_nccl() -> None:
    ranks = [as_nodes({"WORLD_SIZE": "8", "LOCAL_RANK": str(rank)}, 2) for rank in range(8)]
    assert [rank["NCCL_HOSTID"] for rank in ranks] == ["node-0"] * 4 + ["node-1"] * 4
    assert {rank["LOCAL_WORLD_SIZE"] for rank in ranks} == {"4"}
    assert as_nodes({"WORLD_SIZE": "8", "LOCAL_RANK": "3"}, 1) == {}
    with pytest.raises(ValueError, match="8 ranks are not 3 nodes"):
        as_nodes({"WORLD_SIZE": "8", "LOCAL_RANK": "0"}, 3)


@pytest.fixture
def scaling_bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("scaling_bench", ROOT / "trainer" / "benchmarks" / "scaling_bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_stages_of_a_scaling_run_fit_the_time_and_the_machine(scaling_bench: ModuleType, tmp_path: Path) -> None:
    stages = scaling_bench.stages(gpus=8, seconds=600, folder=tmp_path)
    assert sum(stage.seconds for stage in stages) <= 600
    names = [stage.name for stage in stages]
    assert names[:4] == ["steps on 1", "steps on 2", "steps on 4", "steps on 8"]
    assert {"steps of 2 nodes", "prediction on 8", "drift on 4", "resize"} <= set(names)
    two = scaling_bench.stages(gpus=2, seconds=600, folder=tmp_path)
    assert {"steps on 1", "steps on 2", "steps of 2 nodes", "drift on 2", "resize"} <= {stage.name for stage in two}
    assert not any(" 4" in stage.name or " 8" in stage.name for stage in two)


def test_the_programs_of_a_scaling_run_know_the_options_they_get(scaling_bench: ModuleType, tmp_path: Path) -> None:
    for stage in scaling_bench.stages(gpus=8, seconds=600, folder=tmp_path):
        program = next((index for index, word in enumerate(stage.command) if word.endswith("_bench.py")), None)
        if program is None:
            continue  # `rap bench`, which is parsed below
        source = Path(stage.command[program]).read_text()
        for word in stage.command[program + 1 :]:
            assert not word.startswith("--") or f'"{word}"' in source, f"{stage.name}: {word}"


def test_a_scaling_run_asks_rap_bench_for_what_it_takes(scaling_bench: ModuleType, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    command = scaling_bench.steps(8, tmp_path, 100.0, nodes=2)
    chosen = parser.parse_args(command[command.index("bench") + 1 :])
    assert (chosen.gpus, chosen.nodes, chosen.budget) == ([8], 2, 100.0)
    units = from_argument(chosen.units.read_text())
    assert {unit.batch for unit in units} == {4096}
