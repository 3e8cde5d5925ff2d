"""A real `rap run` whose GPU somebody else begins to use: it measures its windows again, and the plan made from them takes over."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.pod import ENV_PLAN_FILE, PLANNING_PATH, ExitCode
from rap_contract.profile import KINDS, Profile, Response
from rap_contract.validation import check_job
from rap_contract.windows import INLINE, PLACES
from rap_operator.replanning.worker import answer
from rap_trainer.plan.comparison import STEP
from rap_trainer.plan_inputs import model_hash, read_profile
from rap_trainer.profiling.device import name_of_device
from replanning.long_steps_job import Files, command, document, neighbour
from servers.processes import free_port
from servers.waiting import wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
LONG_S = 0.010
"""Steps from which windows are measured with the job's own launches."""


def guessed(job: RAPJob) -> Profile:
    """A profile of long steps that nobody has measured yet: steps of 20 ms, all windows alike."""
    made = read_profile(None, job)
    guess = tuple(Response(kind=kind, num_bytes=0, solo_seconds=1e-3, added_seconds=1e-4) for kind in KINDS)
    windows = tuple(
        window.model_copy(update={"responses": guess}) if window.name in PLACES else window for window in made.windows
    )
    device = made.device.model_copy(update={"name": name_of_device(gpu=True)})
    parts = {"device": device, "windows": windows, "model_hash": model_hash(job), "num_ranks": 1, "step_seconds": 0.02}
    return made.model_copy(update=parts)


class Job:
    """The job and its profile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.yaml, self.plan_file, self.log = folder / "job.yaml", folder / "plan.json", folder / "log"
        self.profile_file = folder / "checkpoints" / "profile.json"
        self.profile_file.parent.mkdir()
        self.yaml.write_text(yaml.safe_dump(document(folder, port=self.port)))
        self.profile_file.write_text(guessed(check_job(document(folder, port=self.port))).to_json())

    def run(self) -> subprocess.Popen[bytes]:
        line, environment = command("run", str(self.yaml), "--plain", **{ENV_PLAN_FILE: str(self.plan_file)})
        with self.log.open("wb") as log:
            return subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def hand(self, text: str) -> None:
        """As a kubelet brings a ConfigMap: a new file under the old name."""
        aside = self.plan_file.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self.plan_file)

    def page(self, path: str = "/metrics") -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as found:
                return str(found.read().decode())
        except OSError:
            return ""

    def samples(self, metric: metrics.Metric) -> dict[str, float]:
        """Values by labels as they are written."""
        lines = [line for line in self.page().splitlines() if line.startswith((f"{metric.name}{{", f"{metric.name} "))]
        split = (line.removeprefix(metric.name).rpartition(" ") for line in lines)
        return {labels: float(value) for labels, _, value in split}

    def plan(self) -> str:
        return next(iter(self.samples(metrics.PLAN_INFO)), "").partition('plan="')[2].partition('"')[0]

    def ratio(self) -> float:
        """Measured over predicted step."""
        return self.samples(metrics.PLAN_ERROR_RATIO).get(f'{{part="{STEP}"}}', 0.0)

    def capacity(self) -> dict[str, float]:
        return self.samples(metrics.WINDOW_CAPACITY_SECONDS)

    def planning(self) -> str:
        return self.page(PLANNING_PATH)

    def searched(self) -> dict[str, Any]:
        """What the operator's search process answers for this job."""
        return answer(self.planning(), deadline_s=20.0)

    def all_in(self, window: str) -> Plan:
        """The plan with all preprocessing in one window, by the profile as it is."""
        page = json.loads(self.planning()) | {"plan": None, "defaultWindow": window}
        return Plan.from_json(answer(json.dumps(page), deadline_s=20.0)["fallbackPlan"])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"))


def test_a_neighbour_on_the_gpu_makes_a_running_job_measure_again_and_take_another_plan(job: Job) -> None:
    first = Profile.from_json(job.profile_file.read_text())
    began_s = time.monotonic()
    with ExitStack() as ending:
        files, run, other = Files(job.folder), job.run(), ending.enter_context(neighbour())
        ending.callback(run.kill)
        wait_until(job.planning, limit_s=120, what="the job to serve its pages", every_s=0.2)
        assert job.plan() == "none"
        files.begin()
        ending.callback(files.end)
        wait_until(lambda: job.samples(metrics.MEAN_LIST_LENGTH), limit_s=60, what="lists to be trained", every_s=0.1)
        inline = job.all_in(INLINE)
        job.hand(inline.to_json())
        wait_until(lambda: job.plan() == inline.hash, limit_s=60, what="everything inline", every_s=0.1)
        print(f"{time.monotonic() - began_s:.0f} s: everything inline", flush=True)
        alone = wait_until(job.ratio, limit_s=60, what="steps of that plan to be judged", every_s=0.1)
        capacity = job.capacity()
        assert len(capacity) == len(PLACES)

        print(f"{time.monotonic() - began_s:.0f} s: {alone} of the predicted step", flush=True)
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        told = b"the windows of the step were measured again in"
        wait_until(lambda: told in job.log.read_bytes(), limit_s=120, what="windows to be measured again", every_s=0.2)
        other.kill()
        print(f"{time.monotonic() - began_s:.0f} s: measured again", flush=True)
        again = Profile.from_json(job.profile_file.read_text())
        assert again.hash != first.hash
        assert again.step_seconds > LONG_S
        assert job.capacity() != capacity
        assert {name for name in PLACES if again.window(name).responses} == set(PLACES)
        assert all(each.num_bytes == 0 for name in PLACES for each in again.window(name).responses), "own launches"

        found, moved = job.searched(), job.all_in("mlp_bwd")
        assert found.get("error") is None
        assert found["before"] == inline.hash
        assert found["afterSeconds"] <= found["beforeSeconds"]
        print(
            f"{alone=} {found['beforeSeconds']=} {found['afterSeconds']=} {first.step_seconds=} {again.step_seconds=}"
        )
        job.hand(moved.to_json())
        wait_until(lambda: job.plan() == moved.hash, limit_s=60, what="a plan made from the new profile", every_s=0.1)
        assert job.samples(metrics.PLAN_SWITCHES) == {'{outcome="switched"}': 2.0}
        print(f"{job.samples(metrics.PLAN_SWITCH_STALL_SECONDS)=}")
        before = job.samples(metrics.STEPS)
        wait_until(lambda: job.samples(metrics.STEPS) != before, limit_s=60, what="training to go on", every_s=0.2)
        run.terminate()
        assert run.wait(timeout=120) == ExitCode.TERMINATED, job.log.read_text()[-3000:]
    lines = [line for line in job.log.read_text().splitlines() if "replan" in line or "measured again" in line]
    print("\n".join(lines))
    assert "not finite" not in job.log.read_text()
