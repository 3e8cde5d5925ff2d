"""What `rap profile` measures of a job on a CPU: kernels, windows of the real step, a profile that a plan is made from."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from planner.random_tasks import random_profile
from rap_contract.problem import InvalidDocument
from rap_contract.profile import KINDS, Profile, Workload
from rap_contract.windows import HOST_GAPS, OPTIMIZER, PLACES
from rap_planner.cost import Costs
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of
from rap_planner.search import Planner
from rap_trainer.plan.fits import busiest_window
from rap_trainer.plan_inputs import read_profile, task_for
from rap_trainer.plans import plan_job
from rap_trainer.profile_command import add_arguments, run, summary
from rap_trainer.profiling.device import device_of, name_of_device
from rap_trainer.profiling.rank import measure
from rap_trainer.world import World, join_world
from train.small_jobs import small_job

pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({}, use_gpu=False)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def profile(world: World, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    chosen = argparse.Namespace(seconds=1.0, mean_length=2.0, date="2026-11-29", kernels=[])
    return measure(small_job(tmp_path_factory.mktemp("job")), world, chosen)


def test_a_profile_has_every_window_with_probes_of_both_kinds(profile: Profile) -> None:
    assert profile.runtime == "eager"
    assert profile.num_ranks == 1
    for name in PLACES:
        responses = profile.window(name).responses
        assert {response.kind for response in responses} == set(KINDS)
        assert all(response.solo_seconds > 0 for response in responses)
    lengths = [profile.window(name).seconds or 0.0 for name in PLACES]
    assert sum(lengths) > 0
    assert {sample.stage for sample in profile.samples} == {"program"}
    assert Profile.from_json(profile.to_json()) == profile


def test_the_optimizer_is_a_window_of_its_own_and_where_the_host_is_the_device_it_leaves_no_gap(
    profile: Profile,
) -> None:
    assert 0 < (profile.window(OPTIMIZER).seconds or 0.0) < profile.step_seconds
    assert profile.window(HOST_GAPS).seconds is None
    assert re.search(r"optimizer +\d+\.\d +beside emb_bwd; nothing is placed there", text_of(profile))


def test_kernels_of_other_jobs_are_refused_where_the_step_is_eager(world: World, tmp_path: Path) -> None:
    chosen = argparse.Namespace(seconds=1.0, mean_length=2.0, date="2026-11-29", kernels=[tmp_path / "other.yaml"])
    with pytest.raises(InvalidDocument, match="kernels of other jobs are of captured steps"):
        measure(small_job(tmp_path), world, chosen)


def test_a_plan_of_the_profile_is_one_that_the_job_runs(profile: Profile, tmp_path: Path) -> None:
    job = small_job(tmp_path)
    result = Planner(enumerator=Enumerator(table_owner=False)).search(
        task_for(job, profile, workload=Workload()), profile
    )
    plan = plan_of(result, profile)
    assert [kernel.stage for kernel in plan.kernels] == ["program"]
    assert busiest_window(plan) == plan.schedule[0].window
    assert plan.prediction.step_seconds <= plan.prediction.inline_seconds


def text_of(profile: Profile) -> str:
    return "\n".join(summary(profile, "p.json", seconds=1.0))


def test_the_summary_says_what_every_window_hides(profile: Profile) -> None:
    text = text_of(profile)
    assert profile.hash in text
    for name in PLACES:
        assert name in text
        assert Costs(profile).capacity_seconds(name) >= 0
    assert "held out are predicted within 10 %" in text


def test_a_profile_of_another_device_or_model_is_refused_with_both_names(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    job = small_job(tmp_path)
    file.write_text(profile.to_json())
    assert read_profile(file, job) == profile
    other = device_of(torch.device("cpu")).model_copy(update={"name": "another machine"})
    file.write_text(profile.model_copy(update={"device": other}).to_json())
    with pytest.raises(InvalidDocument, match="measured on another device than") as caught:
        read_profile(file, job)
    assert "another machine" in str(caught.value)
    file.write_text(profile.to_json())
    with pytest.raises(InvalidDocument, match="measured on another model than"):
        read_profile(file, small_job(tmp_path, trainer__batchSizePerGpu=8))
    file.write_text(random_profile(0).to_json())
    with pytest.raises(InvalidDocument, match=re.escape(f"another device than {name_of_device(gpu=False)}")):
        read_profile(file, job)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    job, parser = tmp_path / "job.yaml", argparse.ArgumentParser()
    job.write_text(json.dumps(plan_job(0)))
    add_arguments(parser)
    with pytest.raises(InvalidDocument, match=r"nowhere/p\.json: cannot be written"):
        run(parser.parse_args([str(job), "--out", str(tmp_path / "nowhere" / "p.json")]))
