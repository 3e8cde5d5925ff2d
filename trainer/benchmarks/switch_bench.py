"""What a change of plan costs training: the trainer's own watch, agreement, switcher and captured runtime, on 1..N GPUs.

    torchrun --standalone --nproc-per-node 2 trainer/benchmarks/switch_bench.py --plan 0 --switches 12

Each rank watches a plan file of its own, as in a pod; the plans differ in where the same preprocessing runs. Every step's
end is an event of the device, so a step counts with whatever held the host or the device up before it. A switch costs what
the steps around it (AROUND, the first is the last of the old plan) take beyond so many median steps of those behind them: the old graphs
are given back among them. The same sum over steps without a switch says what of it is noise. Apart from it: what steps lose while the
next plan is captured beside them. Prints JSON lines; all times are of the slowest rank.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from planning_bench import emit, lap, subject_of  # type: ignore[import-not-found]  # beside this file
from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.profile import GroupWorkload, Workload
from rap_planner.explain import plan_of
from rap_planner.search import Planner
from rap_trainer.bench.subject import Subject, make_model
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan_inputs import read_profile, task_for
from rap_trainer.plans import MEAN_LENGTH, plan_job
from rap_trainer.replan.switcher import Switcher
from rap_trainer.replan.watch import PlanWatch
from rap_trainer.step.agreement import Exchange, Message, decide
from rap_trainer.step.stages import StepState
from rap_trainer.world import World, join_world, leave_world

WINDOWS = ("emb_fwd", "output_dist", "emb_bwd")
"""Of the plans in turn: each has its own graphs, the first once more after the last."""
AROUND = 8
"""Steps over which a switch is counted."""
STEADY_S = 0.5
"""Training between two changes of plan: for the median step, and for the steps that are compared with a switch's."""
POLL_S = 0.02
"""The trainer's watch looks twice a second; here nobody measures how soon it sees a plan."""
PATIENCE_S = 60.0


def plans_of(job: RAPJob, *, mean_length: float) -> list[Plan]:
    """The job's launches, all of them in one window after the other."""
    profile = read_profile(None, job)
    task = task_for(job, profile, workload=Workload(default=GroupWorkload(mean_list_length=mean_length)))
    plan = plan_of(
        Planner().search(task, profile, deadline=lambda: True), profile
    )  # whichever: only its launches are used
    found = []
    for window in WINDOWS:
        schedule = [{"window": window} for _ in plan.kernels]
        own_rows = dict.fromkeys(plan.mapping)
        found.append(Plan.model_validate({**plan.model_dump(), "mapping": own_rows, "schedule": schedule, "hash": ""}))
    return found


class Training:
    """Steps as the trainer's loop makes them, with the end of each."""

    def __init__(self, subject: Subject, runtime: CapturedRuntime, world: World, folder: Path) -> None:
        self._subject, self._runtime, self._world = subject, runtime, world
        self._exchange = Exchange(world)
        self.store = MetricStore(metrics.TRAINER)
        self._switcher = Switcher(runtime, self.store)
        self._file = folder / "plan.json"
        self._watch = PlanWatch(self._file, prepare=self._switcher.prepare, in_force=runtime.plan)
        self._switcher.watch(self._watch)
        self._watch.start(poll_s=POLL_S)
        self._pending: StepState | None = None
        self.ends: list[torch.cuda.Event] = []
        self.switched_at: list[int] = []

    def step(self) -> bool:
        """One step; whether the plan was switched behind it. Collective."""
        rows = self._subject.batch_size
        ready, refused = self._switcher.offer()
        messages = self._exchange(Message(rows=rows, ended=False, ready_plan=ready, refused_plan=refused))
        shares = (rows,) * self._world.size
        decision = decide(messages, room=True, shares=lambda _, *, flush: shares)
        assert not decision.drop_plan, "a rank refuses the plan"
        upcoming = self._runtime.prepare(self._subject.host[len(self.ends) % len(self._subject.host)])
        before = self._runtime.plan
        if self._pending is not None:
            self._runtime.train(self._pending)
        self._switcher.act(switch=decision.switch_plan, drop=0)
        self._pending = upcoming
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        end.record()
        self.ends.append(end)
        is_switched = self._runtime.plan is not before
        if is_switched:
            self.switched_at.append(len(self.ends) - 1)
        return is_switched

    def steady(self, number: int) -> None:
        """So many steps, with nothing else between them. Collective."""
        for _ in range(number):
            self.step()

    def steps_in(self, seconds: float) -> int:
        """About so many, equally many on all ranks. Collective."""
        begun, number = time.perf_counter(), 3 * AROUND
        self.steady(number)
        torch.cuda.synchronize()
        took = torch.tensor([(time.perf_counter() - begun) / number])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=self._world.control_group)
        return max(4 * AROUND, round(seconds / float(took)))

    def change(self, plan: Plan) -> int:
        """Puts a plan into the file and trains until it has been taken; gives the step at which it was put there. Collective."""
        began, first = time.monotonic(), len(self.ends)
        aside = self._file.with_suffix(".new")
        aside.write_text(plan.to_json())
        aside.rename(self._file)
        while not self.step():
            assert time.monotonic() - began < PATIENCE_S, "the plan was not taken"
        return first

    def seconds(self) -> torch.Tensor:
        """Of each step, of the slowest rank [steps]. Collective."""
        torch.cuda.synchronize()
        pairs = zip(self.ends, self.ends[1:], strict=False)
        mine = torch.tensor([0.0, *(early.elapsed_time(late) / 1e3 for early, late in pairs)], dtype=torch.float64)
        dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._world.control_group)
        return mine

    def close(self) -> None:
        self._switcher.close()
        self._runtime.close()


def lost(seconds: torch.Tensor, at: int, *, num: int, usual_s: float) -> float:
    """Seconds beyond the usual of `num` steps from `at` on."""
    return float(seconds[at : at + num].sum()) - num * usual_s


def measured(training: Training, plans: list[Plan], *, switches: int, world: World, **common: Any) -> None:
    """Switches, each followed by steps without one. Collective."""
    told: list[int] = []
    training.change(plans[0])
    steady = training.steps_in(STEADY_S)
    gc.collect()
    gc.freeze()  # a whole collection takes as long as twenty steps of plan 0, here and there
    gc.disable()
    for number in range(switches):
        told.append(training.change(plans[(number + 1) % len(plans)]))
        training.steady(steady)
    gc.enable()
    seconds = training.seconds()
    stood = torch.tensor([training.store.read(metrics.PLAN_SWITCH_STALL_SECONDS)[()]])
    dist.all_reduce(stood, dist.ReduceOp.MAX, group=world.control_group)
    costs, noise, besides, usual = [], [], [], []
    changes = training.switched_at[1:]
    for number, (first, at) in enumerate(zip(told, changes, strict=True)):
        after = changes[number + 1] if number + 1 < len(changes) else len(seconds)
        until = told[number + 1] if number + 1 < len(told) else after
        step_s = float(seconds[at + AROUND : at + 3 * AROUND].median())
        before_s = float(seconds[max(first - 2 * AROUND, 0) : first].median())
        usual.append(step_s)
        costs.append(lost(seconds, at, num=AROUND, usual_s=step_s) / step_s)
        noise += [
            lost(seconds, begin, num=AROUND, usual_s=step_s) / step_s
            for begin in range(at + AROUND, until - AROUND, AROUND)
        ]
        besides.append(lost(seconds, first, num=at - first, usual_s=before_s) / before_s)
        if world.rank == 0:
            around = [round(1e3 * float(each), 2) for each in seconds[at - 2 : at + 2 * AROUND]]
            emit(case="switch", **common, step_ms=1e3 * step_s, lost_steps=costs[-1], beside_steps=at - first,
                 beside_lost_steps=besides[-1], around_ms=around)  # fmt: skip
    noise.sort()
    if world.rank == 0:
        emit(
            case="switches",
            **common,
            gpus=world.size,
            switches=len(costs),
            step_ms=1e3 * statistics.median(usual),
            lost_steps_median=statistics.median(costs),
            lost_ms_median=statistics.median([cost * step_s for cost, step_s in zip(costs, usual, strict=True)]) * 1e3,
            lost_steps_worst=max(costs),
            noise_median=noise[len(noise) // 2],
            noise_p95=noise[int(0.95 * len(noise))],
            noise_worst=noise[-1],
            stood_ms_mean=1e3 * float(stood) / (len(costs) + 1),
            beside_lost_steps_median=statistics.median(besides),
            beside_lost_steps_worst=max(besides),
        )


def main() -> None:
    """One job's switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--max-rows", type=int, default=100_000)
    parser.add_argument("--mean-length", type=float, default=7.0, help="of plan 4's lists")
    parser.add_argument("--switches", type=int, default=12)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    document = plan_job(options.plan, max_rows=options.max_rows, batch_size=options.batch)
    document["spec"]["trainer"] |= {"gpusPerNode": world.size}
    mean_length = options.mean_length if options.plan == 4 else 1.0
    document["metadata"]["annotations"] = {MEAN_LENGTH: str(mean_length)}
    subject = subject_of(document, SimpleNamespace(**vars(options)), world)
    runtime = CapturedRuntime(make_model(subject, world), subject.graph, world, batch_size=options.batch)
    lap("captured", world)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(subject, runtime, world, Path(folder))
        training.steady(3 * AROUND)
        plans = plans_of(subject.job, mean_length=mean_length)
        lap("trained", world)
        common = {"plan": options.plan, "exchange": runtime.assembly.exchange.name}
        measured(training, plans, switches=options.switches, world=world, **common)
        training.close()
    lap("ended", world)
    leave_world()


if __name__ == "__main__":
    main()
