"""All ranks of many jobs as one server, for load tests: `python -m benchmarks.replanning_pages PORT JOB`, a RAPJob as JSON.

Which job is asked is told by the address (`address_of`), which the fake kubelet gives its pods. The lists are long from the start, so
every job's own plan is a bad one. Each line of its input is what a job's ConfigMap holds now, which its ranks take DELAY_S later.
Pages are made of a text with the size of a real one and a few lines of their own, so that serving costs the machine little.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.trainer_pages import STEPS_PER_S
from benchmarks.trainer_pages import page as any_page
from rap_contract import metrics
from rap_contract.guarded_http import Access, Page, PageServer
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.pod import ENV_PROFILE_FILE
from rap_operator.replanning.page import NO_PLAN, WANTED
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.replan.planning_page import PlanningPage
from replanning.cpu_profile import cpu_profile

MEAN_LENGTH = 60.0
BEFORE_S, AFTER_S = 0.0070, 0.0055
"""A step under the ranks' own plan and under a better one."""
DELAY_S = 10.0
"""Until all ranks have a ConfigMap's change: a kubelet brings it within a sync of a minute, or at once by a watch."""
PER_BLOCK = 250
GROUP = "cat_{0..25}"


def address_of(number: int) -> str:
    """Where the ranks of job-NUMBER are."""
    return f"127.1.{number // PER_BLOCK}.{number % PER_BLOCK + 1}"


def number_at(host: str) -> int:
    """The job at a request's Host."""
    _, _, block, place = host.partition(":")[0].split(".")
    return int(block) * PER_BLOCK + int(place) - 1


class Running:
    """The plan that the runtime of the planning page has."""

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan


class Ranks:
    """What all ranks say."""

    def __init__(self, job: RAPJob) -> None:
        self._job, self._begun_s = job, time.monotonic()
        self._plans: dict[int, tuple[float, Plan]] = {}
        """By job: since when its ranks run which plan."""
        own = {*WANTED, metrics.STEP.name}
        lines = any_page(0.0).decode().splitlines()
        self._rest = "\n".join(line for line in lines if line.partition("{")[0].partition(" ")[0] not in own)
        self._planning = functools.lru_cache(maxsize=64)(self._planning_page)

    def take(self, number: int, text: str) -> None:
        """A ConfigMap's plan."""
        plan = Plan.from_json(text)
        if number not in self._plans or self._plans[number][1].hash != plan.hash:
            self._plans[number] = (time.monotonic() + DELAY_S, plan)

    def answer(self, path: str, headers: Mapping[str, str]) -> Page | None:
        since_s, plan = self._plans.get(number_at(headers["Host"]), (0.0, None))
        now_s = time.monotonic()
        plan, after_s = (plan, now_s - since_s) if plan is not None and now_s >= since_s else (None, 0.0)
        if path == "/planning":
            return Page(body=self._planning(None if plan is None else plan.to_json()))
        return Page(body=self._metrics(now_s - self._begun_s, after_s, plan)) if path == "/metrics" else None

    def _metrics(self, passed_s: float, after_s: float, plan: Plan | None) -> bytes:
        steps = (passed_s - after_s) / BEFORE_S + after_s / AFTER_S
        said = {
            f"{metrics.STEP_SECONDS.name}_count": int(steps),
            f"{metrics.STEP_SECONDS.name}_sum": passed_s,
            metrics.STEP.name: 1 + int(passed_s * STEPS_PER_S),
            metrics.ATTEMPT.name: 1,
            metrics.WORLD_SIZE.name: self._job.spec.trainer.world_size,
            metrics.EXPOSED_SECONDS.name: 0.01 * passed_s,
            metrics.PLAN_SWITCH_STALL_SECONDS.name: 0.2 if plan is not None else 0,
            f'{metrics.PLAN_INFO.name}{{plan="{NO_PLAN if plan is None else plan.hash}"}}': 1,
            f'{metrics.MEAN_LIST_LENGTH.name}{{group="{GROUP}"}}': MEAN_LENGTH,
        }
        return "\n".join([*(f"{name} {value}" for name, value in said.items()), self._rest, ""]).encode()

    def _planning_page(self, plan: str | None) -> bytes:
        store = MetricStore(metrics.TRAINER)
        store.set(metrics.MEAN_LIST_LENGTH, MEAN_LENGTH, group=GROUP)
        runtime: Any = Running(None if plan is None else Plan.from_json(plan))
        return PlanningPage(self._job, store, runtime)()


def main(port: int, document: str) -> None:
    """Serves until its input ends."""
    job = RAPJob.model_validate(json.loads(document))
    profile = cpu_profile(job, beside_s=0.0010, step_s=0.005, seconds_per_byte=1e-8)
    Path(os.environ[ENV_PROFILE_FILE]).write_text(profile.to_json())
    ranks = Ranks(job)
    server = PageServer("0.0.0.0", port, ranks.answer, access=Access())  # 127/8 is more than one address
    server.start()
    for line in sys.stdin:
        number, text = json.loads(line)
        ranks.take(number, text)
    server.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
