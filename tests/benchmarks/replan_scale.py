"""A thousand jobs whose data drifts at once: real passes, real searches in their worker process, a cluster in memory.

    PYTHONPATH=operator:trainer:tests python tests/benchmarks/replan_scale.py --jobs 1000

Prints a JSON line: time of a pass, jobs that switched at a time at most, and how long it took. The cluster's own work
(copies of objects) is inside the passes; a real server adds its latency to those that write.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from operator_world.fake_cluster import Object
from operator_world.world import NAMESPACE, rapjob
from rap_contract.job import RAPJob
from rap_contract.metrics import MEAN_LIST_LENGTH, TRAINER
from rap_operator.replanning.searches import Limits, Searches
from rap_operator.resources import RAPJOBS
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.replan.planning_page import PlanningPage
from replanning.cpu_profile import cpu_profile
from replanning.replan_world import JOB, POLICY, ReplanWorld, Trainer

ROUND_S = 15.0  # of simulated time: the reader's interval
SOON_S, PASSES = 1.0, 4  # passes that are wanted so soon follow at once, so many of them


class _Runtime:
    plan = None


def page_of(job: RAPJob, length: float) -> Object:
    """What a first rank would serve, of lists this long."""
    store = MetricStore(TRAINER)
    store.set(MEAN_LIST_LENGTH, length, group="cat_{0..1}")
    page: Object = json.loads(PlanningPage(job, store, _Runtime())())  # type: ignore[arg-type]  # the part of a runtime it asks
    assert "error" not in page, page
    return page


def main() -> None:
    """Runs once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--max-switching", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which it ends, whoever has switched")
    options = parser.parse_args()
    world = ReplanWorld(max_switching=options.max_switching)
    names = [f"job-{number:04d}" for number in range(options.jobs)]
    for name in names:
        document = rapjob(replanning={**POLICY, "minIntervalSeconds": 0})
        document["metadata"]["name"] = name
        world.trainers[name] = Trainer(step_of=lambda plan, length: 0.0055 if plan or length < 30 else 0.0070)
        world.cluster.create(RAPJOBS, NAMESPACE, document)
    for _ in range(6):
        world.round()
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"replan-scale-{os.getpid()}"
    folder.mkdir()
    profile = cpu_profile(JOB, beside_s=0.0010, step_s=0.005, seconds_per_byte=1e-8)
    (folder / "profile.json").write_text(profile.to_json())
    os.environ["RAP_PROFILE_FILE"] = str(folder / "profile.json")
    page = {"text": json.dumps(page_of(JOB, 4.0))}
    searches = Searches(lambda url: page["text"], lambda key: None, limits=Limits(workers=1))
    world.replanner.searches = searches
    world.replanner.reader.tell_every_s = 0.0
    print(json.dumps({"case": "started", "jobs": options.jobs}), flush=True)
    _live(world, 12, [])
    for trainer in world.trainers.values():
        trainer.length = 60.0
    page["text"] = json.dumps(page_of(JOB, 60.0))
    times: list[tuple[float, float]] = []
    began_s, rounds = time.monotonic(), 0
    while not all(trainer.switched for trainer in world.trainers.values()):
        if time.monotonic() - began_s > options.seconds:
            break
        _live(world, 1, times)
        rounds += 1
    walls, cpus = sorted(wall for wall, _ in times), sorted(cpu for _, cpu in times)
    result = {
        "case": "replan_scale",
        "jobs": options.jobs,
        "switched": sum(bool(trainer.switched) for trainer in world.trainers.values()),
        "limit": options.max_switching,
        "most_switching": world.most_switching,
        "passes": len(times),
        "pass_ms_p50": 1e3 * walls[len(walls) // 2],
        "pass_ms_p99": 1e3 * walls[int(0.99 * len(walls))],
        "pass_cpu_ms_p50": 1e3 * cpus[len(cpus) // 2],
        "pass_cpu_ms_p99": 1e3 * cpus[int(0.99 * len(cpus))],
        "load": os.getloadavg()[0],
        "rounds": rounds,
        "simulated_s": rounds * ROUND_S,
        "wall_s": time.monotonic() - began_s,
    }
    print(json.dumps({key: round(v, 3) if isinstance(v, float) else v for key, v in result.items()}), flush=True)
    searches.close()


def _live(world: ReplanWorld, rounds: int, times: list[tuple[float, float]]) -> None:
    """Rounds of simulated time; appends the seconds of each pass."""
    texts = {}
    for _ in range(rounds):
        world.cluster.now_s += ROUND_S
        world.monotonic_s += ROUND_S
        for item in world.cluster.of("ConfigMap"):
            text = (item.get("data") or {}).get("plan.json")
            if text:
                texts[item["metadata"]["labels"]["rap.dev/job"]] = text
        for name, trainer in world.trainers.items():
            trainer.advance(world.cluster.now_s, ROUND_S, texts.get(name, ""), 1)
        world.sync()
        world.cluster.log.clear()
        world.replanner.reader.read_all()
        for view in world.controller.cache.rapjobs():
            again_s: float | None = 0.0
            for _ in range(PASSES):
                if again_s is None or again_s > SOON_S:
                    break
                began_s, busy_s = time.perf_counter(), time.thread_time()
                again_s = world.controller.reconcile((view.meta.namespace, view.meta.name))
                times.append((time.perf_counter() - began_s, time.thread_time() - busy_s))
        changes = [
            ((view.item.get("status") or {}).get("replanning") or {}).get("change") or {}
            for view in world.controller.cache.rapjobs()
        ]
        switching = sum(change.get("state") in ("Applying", "Reverting") for change in changes)
        world.most_switching = max(world.most_switching, switching)


if __name__ == "__main__":
    main()
