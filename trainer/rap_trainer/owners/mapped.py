"""The eager runtime's preprocessing under whatever mapping is in force. All ranks change it between the same two steps."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from rap_contract.graph import FeatureGraph
from rap_contract.plan import Plan

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.model.shard import ShardedModel
from rap_trainer.owners.delivery import Delivery
from rap_trainer.owners.preprocess import Make, OwnerPreprocess, Preprocess
from rap_trainer.plan.fits import owner_refusal, refusal
from rap_trainer.plan_inputs import owners_of
from rap_trainer.world import World, peer_timeout_s


class Mapped:
    """Preprocesses own rows until a plan says otherwise."""

    def __init__(self, model: ShardedModel, graph: FeatureGraph, world: World, *, make: Make, rows: int) -> None:
        """Collective: ranks get a group of their own for raw columns, for these may travel beside training."""
        self._graph, self._world, self._make, self._rows = graph, world, make, rows
        self._own: Preprocess = make(graph, rows)
        self._in_force = self._own
        self._owners = owners_of(model.plan)
        self.delivery: Delivery | None = None
        """None: this model takes nothing that was preprocessed elsewhere."""
        self._group: dist.ProcessGroup | None = None
        if world.size == 1:
            return
        self._group = dist.new_group(timeout=timedelta(seconds=peer_timeout_s()))
        try:
            self.delivery = Delivery(model.module)
        except ValueError:
            self._owners = {}

    def __call__(self, raw: RawBatch) -> ModelBatch:
        """Collective under a plan with table owners. Raises BatchError."""
        return self._in_force(raw)

    def refusal(self, plan: Plan) -> str | None:
        """Why a plan cannot run here; None if it can."""
        reason = refusal(plan, self._graph, num_ranks=self._world.size)
        return reason or owner_refusal(plan, self._graph, self._owners)

    def remap(self, plan: Plan | None) -> None:
        """From the next batch on. Talks to no other rank."""
        self._in_force = self._own if plan is None or not plan.owned else self._with_owners(plan)

    def _with_owners(self, plan: Plan) -> Preprocess:
        if self._world.size == 1 or self._group is None:  # the owner's rows are the own ones
            return self._own
        return OwnerPreprocess(self._graph, plan.mapping, self._world, self._group, make=self._make, rows=self._rows)
