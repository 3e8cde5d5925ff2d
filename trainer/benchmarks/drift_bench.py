"""What a change of plan is worth and costs on GPUs: steps of several schedules for lists of several lengths, and the switch.

    torchrun --standalone --nproc-per-node 2 trainer/benchmarks/drift_bench.py --plan 4

Prints JSON lines: `table` (device time of a step by schedule, list length and neighbour) and `switch` (how long training
stands still). `drift_replay.py` follows a drift through the table with the operator's own decision.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from rap_trainer.bench.blocks import with_blocks
from rap_trainer.bench.subject import Subject, make_model, make_subject
from rap_trainer.captured.runtime import CapturedRuntime
from rap_trainer.captured.schedule import Schedule, Window
from rap_trainer.captured.state import CapturedState
from rap_trainer.plans import MEAN_LENGTH, synthetic_batch
from rap_trainer.world import World, join_world, leave_world

CASES: tuple[tuple[Window, int | None], ...] = (
    (Window.INLINE, None),
    (Window.OUTPUT_DIST, None),
    (Window.OUTPUT_DIST, 64),
    (Window.MLP_BWD, 64),
    (Window.GRAD_DIST, 64),
    (Window.EMB_BWD, None),
)
STEPS = 40
WARM = 5
NEIGHBOUR = 4096  # side of the matrices somebody else multiplies all the time: most of an H200's SMs


def emit(world: World, **result: Any) -> None:
    """One JSON line, of the first rank."""
    if world.rank == 0:
        print(json.dumps(result), flush=True)


class Bench:
    """A captured runtime with two batches of each length, trained in turn without packing on the host."""

    def __init__(self, subject: Subject, world: World, lengths: Sequence[float]) -> None:
        self.world = world
        self.runtime = CapturedRuntime(make_model(subject, world), subject.graph, world, batch_size=subject.batch_size)
        self.batches = {}
        for length in sorted(lengths, reverse=True):  # the longest first: buffers grow once
            document = {**subject.document, "metadata": {**subject.document["metadata"]}}
            document["metadata"]["annotations"] = {MEAN_LENGTH: str(length)}
            rows = subject.batch_size * world.size
            found = []
            for seed in range(2):
                raw = synthetic_batch(document, subject.batch_size, seed=seed * 10 + world.rank, device=world.device)
                host = replace(raw, global_rows=rows).map(lambda tensor: tensor.cpu().pin_memory())
                found.append(with_blocks(host, subject.graph))
            self.batches[length] = found

    def step_ms(self, length: float) -> float:
        """Milliseconds of a step on the device, the slowest rank's."""
        states = [self.runtime.prepare(raw) for raw in self.batches[length]]
        self._train(states, WARM)
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        self._train(states, STEPS)
        torch.cuda.synchronize()
        took = torch.tensor([(time.perf_counter() - began) / STEPS * 1e3])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=self.world.control_group)
        return float(took)

    def _train(self, states: list[CapturedState], steps: int) -> None:
        for _ in range(steps // 2):
            for now, following in ((0, 1), (1, 0)):
                self.runtime._upcoming = states[following]  # as if it had just been prepared
                self.runtime.train(states[now])

    def switch_s(self, window: Window, programs: int | None) -> float:
        """Seconds that training stands still, the slowest rank's."""
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        self.runtime.switch(Schedule.uniform(self.runtime.num_kernels, window, programs))
        torch.cuda.synchronize()
        took = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=self.world.control_group)
        return float(took)


def beside_a_neighbour(measure: Callable[[], float], device: torch.device) -> float:
    """The measurement while a stream of its own multiplies matrices."""
    stream, side = torch.cuda.Stream(device), torch.randn(NEIGHBOUR, NEIGHBOUR, device=device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.cuda.stream(stream):
        for _ in range(2000):
            torch.mm(side, side)
    try:
        return measure()
    finally:
        torch.cuda.synchronize()


def main() -> None:
    """Measures one plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--max-rows", type=int, default=20_000)
    parser.add_argument("--lengths", default="20,40,60")
    parser.add_argument("--seconds", type=float, default=45.0)
    options = parser.parse_args()
    end_s = time.monotonic() + options.seconds
    world = join_world(use_gpu=True)
    lengths = [float(length) for length in options.lengths.split(",")]
    subject = make_subject(options.plan, options.batch_size, world, max_rows=options.max_rows)
    bench = Bench(subject, world, lengths)
    about = {"plan": options.plan, "ranks": world.size, "batch": options.batch_size}
    for length in sorted(lengths, reverse=True):
        bench.step_ms(length)
    for window, programs in CASES:
        late = torch.tensor([float(time.monotonic() > end_s)])
        dist.all_reduce(late, dist.ReduceOp.MAX, group=world.control_group)
        if late.item():
            break
        name = f"{window.value}/{programs or 'full'}"
        stood_s = bench.switch_s(window, programs)
        for length in lengths:
            step_ms = bench.step_ms(length)
            emit(world, case="table", schedule=name, length=length, neighbour=False, step_ms=step_ms, **about)
        emit(world, case="switch", schedule=name, seconds=stood_s, steps=stood_s * 1e3 / step_ms, **about)
        step_ms = beside_a_neighbour(lambda: bench.step_ms(lengths[-1]), world.device)
        emit(world, case="table", schedule=name, length=lengths[-1], neighbour=True, step_ms=step_ms, **about)
    bench.runtime.close()
    leave_world()


if __name__ == "__main__":
    main()
