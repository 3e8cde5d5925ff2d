"""The plans of the paper, and on a GPU plan 4 too, through the fused kernels: equal to the eager program."""

from __future__ import annotations

import pytest
import torch
from fusion.fusion_jobs import expect_equal
from rap_contract.graph import compile_features
from rap_contract.job import RAPJobSpec
from rap_trainer.fusion import FusedProgram, Limits
from rap_trainer.plans import plan_job, synthetic_batch
from rap_trainer.program import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # numpy of the interpreter
TOLERANCE = {2: 1e-2, 3: 1e-2}
"""Four logits in a row magnify the last bit of the first by up to 1e5 a time; other plans 4e-6."""


def check_plan(plan: int, rows: int, device: str) -> None:
    document = plan_job(plan, max_rows=1000, dim=8)
    graph, problems = compile_features(RAPJobSpec.model_validate(document["spec"]))
    assert graph is not None, problems
    fused = FusedProgram(graph, torch.device(device), limits=Limits(batch_size=rows))
    for seed in range(2):
        raw = synthetic_batch(document, rows, seed=seed, device=device)
        expect_equal(fused.run(raw), Program(graph).run(raw), tolerance=TOLERANCE.get(plan, 4e-6))


@pytest.mark.parametrize("plan", [0, 2])
def test_a_plan_gives_what_the_eager_program_gives(plan: int) -> None:
    check_plan(plan, 11, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("plan", range(5))
def test_a_plan_gives_what_the_eager_program_gives_on_a_gpu(plan: int) -> None:
    check_plan(plan, 1000, "cuda")
