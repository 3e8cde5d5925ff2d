"""A published model on the CPU: raw events in, click probabilities out, by the very chains that trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument
from torch import nn

from rap_trainer.batch import ModelBatch, RawBatch
from rap_trainer.checkpoint.errors import Damaged
from rap_trainer.checkpoint.layout import check_file
from rap_trainer.jobfile import load_job
from rap_trainer.model.build import build_model
from rap_trainer.model.tables import embedding_bag_collection
from rap_trainer.program import Program
from rap_trainer.serving.version import JOB, NoModel, Version, find_version

_MODEL = "model."


class Scorer:
    """A model and the program that feeds it."""

    def __init__(self, job: RAPJob, version: Version, program: Program, model: nn.Module) -> None:
        self.job, self.version, self.program = job, version, program
        self._model = model

    @classmethod
    def load(cls, path: Path) -> Scorer:
        """The version at `path`, or the current one below it; every file is checked against its digest.

        Raises NoModel, and InvalidDocument for a job that this version of RAP no longer reads.
        """
        directory = find_version(path)
        version = Version.read(directory)
        try:
            for name, digest in version.files.items():
                check_file(directory, name, digest)
        except Damaged as damage:
            raise NoModel(f"{damage}; hint: publish it again, or take the version before") from None
        job = load_job(directory / JOB)
        graph, problems = compile_features(job.spec)
        if graph is None:
            raise InvalidDocument(problems)
        model = build_model(job.spec, embedding_bag_collection(graph), num_dense=graph.dense_width)
        _give_memory(model)
        state: dict[str, Any] = {f"{_MODEL}{name}": tensor for name, tensor in model.state_dict().items()}
        dcp.load(
            state,
            storage_reader=dcp.FileSystemReader(directory),
            planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=True,
        )
        return cls(job, version, Program(graph), model.eval())

    @torch.no_grad()
    def score(self, batch: ModelBatch) -> torch.Tensor:
        """Click probabilities, float32 [B]."""
        logits_B: torch.Tensor = self._model(batch.dense_BD, batch.sparse)
        return torch.sigmoid(logits_B).reshape(-1)

    def score_raw(self, raw: RawBatch) -> torch.Tensor:
        """Click probabilities of raw events, float32 [B]."""
        return self.score(self.program.run(raw))


def _give_memory(model: nn.Module) -> None:
    """Tables come from `build_model` without memory; here they get some, unfilled."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                module.register_parameter(name, nn.Parameter(empty, requires_grad=False))
