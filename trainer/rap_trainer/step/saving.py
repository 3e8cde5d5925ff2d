"""Saves and restores the state of a run at a step boundary: what belongs to it, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from rap_trainer.batch import Positions
from rap_trainer.checkpoint.layout import JobIdentity
from rap_trainer.checkpoint.reader import Found, find, load
from rap_trainer.checkpoint.tensors import begin_state, training_tensors
from rap_trainer.checkpoint.writer import CheckpointWriter, Moment, Written
from rap_trainer.evaluation.evaluator import AllReduce, Evaluator
from rap_trainer.model.shard import ShardedModel
from rap_trainer.serving.publisher import Publisher
from rap_trainer.world import World

_EVALUATION = "evaluation."


class Saving:
    """Model, optimizers and evaluation on one side, the checkpoint directory on the other."""

    def __init__(
        self,
        root: Path,
        *,
        identity: JobIdentity,
        world: World,
        model: ShardedModel,
        evaluator: Evaluator,
        writer: CheckpointWriter,
        publisher: Publisher | None = None,
    ) -> None:
        self._root = root
        self._identity = identity
        self._world = world
        self._model = model
        self._evaluator = evaluator
        self._started_step: int | None = None
        self._rollbacks = 0
        self.writer = writer
        self._publisher = publisher
        self.saved_step: int | None = None
        """Step of the newest complete checkpoint."""
        self.saved_s: float | None = None
        """Unix time of its state."""

    def is_new(self, step: int) -> bool:
        """Whether the state after `step` is in no checkpoint, written or being written."""
        return step > 0 and step not in (self.saved_step, self._started_step)

    def start(self, moment: Moment, all_reduce: AllReduce) -> Written | None:
        """Begins to write the state. Collective. The result of the write before, if it had not been seen yet."""
        evaluation = self._evaluator.state(all_reduce)
        self._started_step = moment.step
        return self.writer.start(moment, {**training_tensors(self._model), **_named(evaluation)})

    def trained(self) -> None:
        """An optimizer step is done."""
        self._model.iterations.add_(1)

    def moment(self, *, step: int, rows: int, time_s: float, positions: Positions) -> Moment:
        """What to say of the state besides its tensors."""
        return Moment(step=step, rows=rows, rollbacks=self._rollbacks, time_s=time_s, positions=positions)

    def note(self, written: Written) -> None:
        """Takes in how a write ended."""
        if written.error is None:
            self.saved_step, self.saved_s = written.step, written.time_s
            if self._publisher is not None:
                self._publisher.offer(written.step)
        elif self._started_step == written.step:
            self._started_step = None

    def restore(self, found: Found) -> None:
        """Fills model, optimizers and evaluation from a checkpoint. Collective. Raises Incompatible, Damaged."""
        begin_state(self._model)
        evaluation = self._evaluator.state()
        load(found, {**training_tensors(self._model), **_named(evaluation)}, self._world)
        self._model.restored()
        self._evaluator.load_state(evaluation, rank=self._world.rank)
        self._rollbacks = max(self._rollbacks, found.manifest.rollbacks)
        self.saved_step, self.saved_s = found.manifest.step, found.manifest.time_s

    def roll_back(self) -> bool:
        """Goes back to the newest checkpoint, if there is one and it was not done before. Collective."""
        if self._rollbacks:
            return False
        found = find(self._root, self._identity, self._world)
        if found is None:
            return False
        self.restore(found)
        self._rollbacks += 1
        return True


def _named(evaluation: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{_EVALUATION}{name}": tensor for name, tensor in evaluation.items()}
