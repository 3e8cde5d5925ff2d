"""The windows of the eager step: how long each is, and what the step loses to a probe beside it, on a CPU or a GPU.

The real step runs, on batches that are preprocessed already, and a probe takes the place of the next batch's preprocessing: on
a CPU in the runtime's thread, on a GPU on its side stream. Collective; a step counts as long as on the slowest rank.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from rap_contract.profile import KINDS, Kind, Response
from rap_contract.windows import INLINE, OPTIMIZER, PLACES

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.evaluation.evaluator import Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.profiling.found import Found, slowest
from rap_trainer.profiling.probe_work import ProbeWork, probe_work
from rap_trainer.step.runtime import EagerRuntime
from rap_trainer.step.stages import Stage, StepState, training_stages
from rap_trainer.step.windows import MLP_BWD, StepWindows
from rap_trainer.world import World

MIN_STEPS, MAX_STEPS = 3, 24
"""Of a measurement; how many follows from the time there is."""


class EagerWindows:
    """Runs a model's eager step with probes. The evaluator counts nothing that lasts."""

    def __init__(
        self,
        model: ShardedModel,
        evaluator: Evaluator,
        world: World,
        *,
        raws: Sequence[RawBatch],
        ready: Sequence[ModelBatch],
        precision: str,
    ) -> None:
        self._world, self._raws = world, raws
        self._windows = StepWindows(model.module)
        batches = {id(raw): batch for raw, batch in zip(raws, ready, strict=True)}
        self._probe: Callable[[], None] = lambda: None

        def preprocess(state: StepState) -> None:
            self._probe()
            state.batch = batches[id(state.raw)]

        main = [
            stage
            for stage in training_stages(
                model, _never, evaluator, world_size=world.size, device=world.device, precision=precision
            )
            if stage.stream == "main"
        ]
        self._main = main
        self._runtime = EagerRuntime(
            [Stage(name="preprocess", run=preprocess, stream="side"), *main], device=world.device, windows=self._windows
        )

    def find(self, *, lengths: Sequence[float], seconds: float, kinds: Sequence[Kind] = KINDS) -> Found:
        """Everything, in about so many seconds. Collective."""
        self._runtime.fork_at(INLINE)
        base = slowest(statistics.median(self._steps(MIN_STEPS + 1)[1:]), self._world)
        probes = {kind: probe_work(kind, self._world.device) for kind in kinds}
        cases = len(PLACES) * len(kinds) * len(lengths) + 4
        steps = int(min(MAX_STEPS, max(MIN_STEPS, seconds / cases / max(base + statistics.mean(lengths), 1e-9))))
        base = slowest(statistics.median(self._steps(3 * steps)), self._world)
        found: dict[str, tuple[Response, ...]] = {}
        for window in PLACES:
            self._runtime.fork_at(window)
            found[window] = tuple(
                self._response(probes[kind], kind, length, base=base, steps=steps)
                for kind in kinds
                for length in lengths
            )
        self._probe = lambda: None
        opens = self._opens(steps)
        return Found(step_seconds=base, opens_seconds=opens, responses=found, optimizer_seconds=opens.pop(OPTIMIZER))

    def close(self) -> None:
        """Ends the runtime's thread."""
        self._runtime.close()

    def _response(self, work: ProbeWork, kind: Kind, length: float, *, base: float, steps: int) -> Response:
        amount = self._agreed(work.amount(length))
        self._probe = lambda: work.run(amount)
        added = slowest(statistics.median(self._steps(steps + 1)[1:]), self._world) - base
        return Response(
            kind=kind,
            num_bytes=work.num_bytes(amount),
            solo_seconds=work.seconds(amount),
            added_seconds=max(0.0, added),
        )

    def _steps(self, number: int) -> list[float]:
        """Wall seconds of steps, driven as the loop drives them."""
        times = []
        dist.barrier(self._world.control_group)
        pending = self._runtime.prepare(self._raws[0])
        for turn in range(number):
            began = time.perf_counter()
            upcoming = self._runtime.prepare(self._raws[(turn + 1) % len(self._raws)])
            self._runtime.train(pending)
            self._wait()
            times.append(time.perf_counter() - began)
            if upcoming.error is not None:
                raise upcoming.error
            pending = upcoming
        self._runtime.reload()
        return times

    def _opens(self, steps: int) -> dict[str, float]:
        """When the host reaches each window, median over steps; and how long the optimizer takes."""
        found: dict[str, list[float]] = {name: [] for name in (*PLACES, OPTIMIZER)}
        for turn in range(steps):
            state = self._runtime.prepare(self._raws[turn % len(self._raws)])
            began = began_update = time.perf_counter()
            reached: dict[str, float] = {}
            self._windows.begin(lambda name, at=reached: at.setdefault(name, time.perf_counter()))  # type: ignore[misc]  # bound now
            for stage in self._main:
                if stage.name == "backward":
                    self._windows.enter(MLP_BWD)
                if stage.name == "update":
                    self._wait()
                    began_update = time.perf_counter()
                stage.run(state)
            self._wait()
            found[OPTIMIZER].append(time.perf_counter() - began_update)
            self._windows.end()
            for name in PLACES:
                found[name].append(reached.get(name, began) - began)
            self._runtime.reload()
        return {name: slowest(statistics.median(times), self._world) for name, times in found.items()}

    def _wait(self) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)

    def _agreed(self, amount: int) -> int:
        kept = torch.tensor([amount])
        if self._world.size > 1:
            dist.broadcast(kept, src=0, group=self._world.control_group)
        return int(kept)


def _never(raw: RawBatch) -> ModelBatch:
    raise AssertionError("batches are preprocessed already")
