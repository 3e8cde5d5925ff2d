"""What a plan's preprocessing costs its captured step, part by part, in one run: torchrun --nproc-per-node N trainer/benchmarks/step_account.py.

JSON lines. Sides take turns, round after round: the step with inputs ready (`ideal`); beside it the copies of raw columns that a batch
takes, or one copy of as many bytes; for each window the step with preprocessing whose raw columns stay as they are (`kernels`; with lists
also with room for all ids), and as a job runs it (`rap`). With `--names`, the kernels that differ most between `ideal` and each of the others, by their own time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rap_trainer.bench.captured import CapturedIdeal, Rap
from rap_trainer.bench.subject import Subject, make_model, make_subject
from rap_trainer.bench.timing import profile_steps, time_steps, totals_by_name
from rap_trainer.captured.capture import CapturedSteps
from rap_trainer.captured.copy_rows import Copier
from rap_trainer.captured.raw import RawBuffer
from rap_trainer.captured.schedule import Window
from rap_trainer.world import World, join_world

Step = Callable[[], object]


class Uploader:
    """Copies a batch to buffers nobody reads, one a step, no more than two ahead of the GPU."""

    def __init__(self, rap: Rap) -> None:
        layout, self._raws = rap.runtime.size.layout, rap.host
        self._buffers = [RawBuffer(layout, torch.device("cuda")) for _ in range(2)]
        self._host = RawBuffer(layout, torch.device("cpu"), pinned=True)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._copier = Copier(self._stream)
        self._stepped = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._turn = 0
        self._host.pack(self._raws[0])

    def _next(self) -> int:
        self._turn = 1 - self._turn
        self._stepped[self._turn].synchronize()
        return self._turn

    def by_column(self) -> None:
        """As a batch in pinned memory is copied."""
        turn = self._next()
        target, raw = self._buffers[turn], self._raws[turn]
        copies = target.copies(self._host, raw)
        assert copies is not None, "the batch would be packed"
        target.receive_as_it_is(self._host, raw, copies, self._copier)

    def at_once(self) -> None:
        """As a packed batch is copied."""
        turn = self._next()
        with torch.cuda.stream(self._stream):
            self._buffers[turn].bytes.copy_(self._host.bytes, non_blocking=True)

    def beside(self, step: Step, copy: Step) -> Step:
        """A step with a copy on its way."""

        def both() -> None:
            copy()
            step()
            self._stepped[self._turn].record()

        return both


def ideal_of(subject: Subject, world: World, room: float) -> CapturedIdeal:
    """Trained on the subject's batches. `room`: places for ids, over what the batches fill."""
    ideal = CapturedIdeal(make_model(subject, world), world, batch_size=subject.batch_size, subject=subject, room=room)
    names = [feature.name for feature in subject.graph.sparse]
    for batch in subject.ready:
        ideal.train(batch, names)
    return ideal


def kernels_only(graphs: CapturedSteps) -> Step:
    """Replays graphs on the raw columns that are there."""
    turn = 0

    def step() -> None:
        nonlocal turn
        graphs.replay(turn)
        turn = 1 - turn

    return step


def by_name(step: Step) -> dict[str, float]:
    """Microseconds by kernel, of one step."""
    return {name: us for name, _count, us in totals_by_name(profile_steps(step, steps=4).timeline)}


def main() -> None:
    """Runs what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--max-rows", type=int, default=1_000_000)
    parser.add_argument("--windows", default="emb_fwd,mlp_bwd,inline", help="each WINDOW or WINDOW/PROGRAMS")
    parser.add_argument(
        "--room", type=float, nargs="*", default=[], help="the ideal with room for so many times its ids"
    )
    parser.add_argument("--steps", type=int, default=5, help="of a repeat")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--names", type=int, default=0, metavar="N", help="the N kernels that differ most")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    world = join_world(use_gpu=True)
    account(world, options)


def account(world: World, options: argparse.Namespace) -> None:
    """All sides."""

    def emit(**result: Any) -> None:
        if world.rank == 0:
            print(json.dumps({"plan": options.plan, "batch": options.batch, "gpus": world.size, **result}), flush=True)

    subject = make_subject(options.plan, options.batch, world, max_rows=options.max_rows)
    ready = ideal_of(subject, world, 1.0).one()
    roomy = {room: ideal_of(subject, world, room).one() for room in options.room}
    rap = Rap(make_model(subject, world), subject, world)
    for _ in range(4):
        rap.step()
    rap.runtime.fit()
    uploader = Uploader(rap)
    found: dict[str, list[float]] = {}
    kernels: dict[str, dict[str, float]] = {}

    def measure(side: str, step: Step) -> None:
        timing = time_steps(step, steps=options.steps, repeats=3, warm_up=2)
        found.setdefault(side, []).append(timing.ms)
        if options.names and side not in kernels:
            kernels[side] = by_name(step)
        emit(side=side, ms=timing.ms, low_ms=timing.low_ms, high_ms=timing.high_ms, host_ms=timing.host_ms)

    for _ in range(options.rounds):
        measure("ideal", ready)
        for room, step in roomy.items():
            measure(f"ideal, room {room}", step)
        measure("ideal + copies", uploader.beside(ready, uploader.by_column))
        measure("ideal + one copy", uploader.beside(ready, uploader.at_once))
        for place in options.windows.split(","):
            window, _, programs = place.partition("/")
            rap.switch(Window(window), int(programs or 0) or None)
            size = rap.runtime.size
            if size.fitted is not None:
                measure(f"kernels {place}, room for all ids", kernels_only(size.graphs))
            measure(f"kernels {place}", kernels_only(size.graphs if size.fitted is None else size.fitted.graphs))
            measure(f"rap {place}", rap.step)
    base = statistics.median(found["ideal"])
    emit(above_ideal_us={side: round((statistics.median(ms) - base) * 1e3, 1) for side, ms in found.items()})
    for side, totals in kernels.items():
        if side != "ideal":
            longer = {
                name: totals.get(name, 0.0) - kernels["ideal"].get(name, 0.0) for name in {*totals, *kernels["ideal"]}
            }
            most = sorted(longer.items(), key=lambda item: -abs(item[1]))[: options.names]
            emit(side=side, longer_us={name[:90]: round(us, 1) for name, us in most})
    dist.barrier()


if __name__ == "__main__":
    main()
