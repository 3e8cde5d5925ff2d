"""`rap plan` on the plans of the paper and on plan 4: what it prints, and what it refuses."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
import yaml
from planner.random_tasks import random_profile
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument
from rap_contract.profile import GroupWorkload, Profile, Workload
from rap_planner.enumerate import Enumerator
from rap_planner.search import Planner
from rap_planner.work import Ranks, balanced_owners, task_of
from rap_trainer.captured.schedule import Placement, Schedule, Window
from rap_trainer.plan_command import add_arguments, run
from rap_trainer.plan_inputs import fused_kernels, model_hash, read_profile, task_for
from rap_trainer.plans import plan_job

US = 1e-6


def written(path: Path, number: int = 0, *, gpus: int = 2) -> Path:
    document = plan_job(number)
    document["spec"]["trainer"]["gpusPerNode"] = gpus
    file = path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert run(parser.parse_args([str(argument) for argument in arguments])) == 0
    return capsys.readouterr().out


def test_a_plan_is_printed_with_its_reasons_and_what_was_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = planned(capsys, written(tmp_path))
    assert "indicative: the profile is of another model or machine" in text
    assert "fillNull > sigridHash > firstx" in text
    assert "all kernels inline" in text
    assert "no plan can be below" in text


def test_the_plan_as_json_is_one_the_captured_runtime_can_express(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = planned(capsys, written(tmp_path, 4), "--json", "--mean-length", 20)
    plan = Plan.from_json(text)
    placements = [
        Placement(kernel=kernel.launch, window=Window(placed.window), programs=placed.programs)
        for kernel, placed in zip(plan.kernels, plan.schedule, strict=True)
    ]
    assert len(Schedule(placements=tuple(placements)).placements) == len(plan.kernels) > 5
    assert set(plan.mapping.values()) == {None}
    assert text == planned(capsys, tmp_path / "job.yaml", "--json", "--mean-length", 20)


def test_a_diff_names_kernels_that_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, old = written(tmp_path, 4), tmp_path / "old.json"
    old.write_text(planned(capsys, job, "--json", "--mean-length", 2))
    assert "the same plan" in planned(capsys, job, "--diff", old, "--mean-length", 2)
    assert re.search(r"kernel \d+ \w+: \w+ \(.+\) -> ", planned(capsys, job, "--diff", old, "--mean-length", 200))


def test_two_plans_of_a_history_are_compared_without_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, old, new = written(tmp_path, 4), tmp_path / "plan-old.json", tmp_path / "plan-new.json"
    for path, length in ((old, 2), (new, 200)):
        path.write_text(planned(capsys, job, "--json", "--mean-length", length))
    monkeypatch.setattr(Planner, "search", lambda *_, **__: pytest.fail("searched"))
    first, *changes = planned(capsys, job, "--diff", old, new).splitlines()
    assert first == f"{Plan.from_json(old.read_text()).hash} -> {Plan.from_json(new.read_text()).hash}"
    assert any(re.match(r"kernel \d+ \w+: ", line) for line in changes)
    with pytest.raises(InvalidDocument, match="compares two plans, 3 were given"):
        planned(capsys, job, "--diff", old, new, old)


def test_list_lengths_by_group_change_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, sizes = written(tmp_path, 4), tmp_path / "sizes.json"
    sizes.write_text(json.dumps({"groups": {"ids_{0..149}": {"meanListLength": 100}}}))
    short, long = (Plan.from_json(planned(capsys, job, "--json", *more)) for more in ((), ("--workload", sizes)))
    assert long.prediction.inline_seconds > short.prediction.inline_seconds + 10 * US
    sizes.write_text(json.dumps({"groups": {"cats": {}}}))
    with pytest.raises(InvalidDocument, match=r"groups.cats: no such feature group"):
        planned(capsys, job, "--workload", sizes)


def test_a_profile_of_another_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, file = written(tmp_path), tmp_path / "profile.json"
    mine = model_hash(RAPJob.model_validate(yaml.safe_load(job.read_text())))
    file.write_text(random_profile(0).model_copy(update={"model_hash": mine}).to_json())
    assert "indicative" not in planned(capsys, job, "--profile", file)
    file.write_text(random_profile(0).model_copy(update={"model_hash": "0" * 16}).to_json())
    with pytest.raises(InvalidDocument, match="measured on another model"):
        planned(capsys, job, "--profile", file)


def test_a_missing_profile_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidDocument, match=r"nowhere.json: No such file"):
        planned(capsys, written(tmp_path), "--profile", tmp_path / "nowhere.json")


def test_what_is_wrong_with_a_file_says_which_one_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, file = written(tmp_path), tmp_path / "mine.json"
    file.write_text('{"a":')
    for option in ("--profile", "--diff", "--owners"):
        with pytest.raises(InvalidDocument, match=r"not JSON(.|\n)*mine\.json"):
            planned(capsys, job, option, file)
    document = json.loads(random_profile(0).to_json())
    file.write_text(json.dumps(document | {"windows": document["windows"][:3]}))
    with pytest.raises(InvalidDocument, match=r"missing \['mlp_fwd'(.|\n)*mine\.json") as refused:
        planned(capsys, job, "--profile", file)
    assert len(str(refused.value)) < 500, "the whole document is no help"


def test_a_page_that_cannot_be_written_and_a_run_without_a_page_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidDocument, match=r"nowhere/plan\.html: No such file"):
        planned(capsys, written(tmp_path), "--html", tmp_path / "nowhere" / "plan.html")
    with pytest.raises(InvalidDocument, match="--measured: nothing to draw it in"):
        planned(capsys, tmp_path / "job.yaml", "--measured", tmp_path / "history.jsonl")


def test_a_diff_of_two_jobs_stays_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    old.write_text(planned(capsys, written(tmp_path, 0), "--json"))
    lines = planned(capsys, written(tmp_path, 2), "--diff", old).splitlines()
    assert len(lines) < 50
    assert any(re.match(r"\.\.\. \d+ more features", line) for line in lines)


@pytest.mark.parametrize("number", range(5))
def test_the_plans_of_the_paper_are_never_worse_than_in_the_papers_order(number: int) -> None:
    document = plan_job(number)
    document["spec"]["trainer"]["gpusPerNode"] = 4
    job = RAPJob.model_validate(document)
    workload = Workload(default=GroupWorkload(mean_list_length=20 if number == 4 else 1))
    for profile in (read_profile(None, job), random_profile(number)):
        result = Planner().search(task_for(job, profile, workload=workload), profile)
        assert result.bound_seconds <= result.best.seconds
        assert result.best.seconds <= min(result.in_order.seconds, result.inline.seconds)


MEASURED = Path(__file__).parents[2] / "docs" / "performance" / "planning.jsonl"


def shipped() -> Profile:
    return read_profile(None, RAPJob.model_validate(plan_job(0)))


def test_the_h200_profile_picks_a_placement_that_was_measured_among_the_best() -> None:
    """Plan 0 on two H200s: every window and grid was measured (docs/performance), and the step that the profile predicts."""
    measured = {}
    for line in MEASURED.read_text().splitlines():
        found = json.loads(line)
        if found["run"] == "nvlink" and found["case"] == "step" and "/" in found["name"]:
            measured[found["name"]] = found["seconds"]
    document = plan_job(0)
    document["spec"]["trainer"]["gpusPerNode"] = 2
    job, profile = RAPJob.model_validate(document), shipped()
    result = Planner(enumerator=Enumerator.of(profile)).search(task_for(job, profile, workload=Workload()), profile)
    ((window, grid),) = result.best.schedule
    assert measured[f"{window}/{grid}"] <= 1.01 * min(measured.values())
    assert result.best.seconds == pytest.approx(measured[f"{window}/{grid}"], rel=0.05)
    assert result.inline.seconds == pytest.approx(measured["inline/None"], rel=0.05)


def test_tables_are_dealt_so_that_ranks_hold_about_as_much() -> None:
    graph, _ = compile_features(RAPJob.model_validate(plan_job(2)).spec)
    assert graph is not None
    owners = balanced_owners(graph, 4)
    assert {rank: list(owners.values()).count(rank) for rank in range(4)} == dict.fromkeys(range(4), 13)
    ranks = Ranks(num_ranks=4, owners=owners, memory_bytes=1e6)
    task = task_of(
        "j", graph, fused_kernels(graph, Workload()), pieces={}, batch_size=4096, workload=Workload(), ranks=ranks
    )
    with pytest.raises(InvalidDocument, match="GiB of rank"):
        Planner().search(task, shipped())
