"""A profile of a job on CPUs, made up: little preprocessing is cheapest inline, much of it beside the backward pass.

So the planner's answer depends on list lengths, on a machine without a GPU and without measuring anything.
"""

from __future__ import annotations

import torch
from rap_contract.job import RAPJob
from rap_contract.profile import Coefficients, Links, Profile, Rates, Response, WindowProfile
from rap_contract.windows import INPUT_DIST, PLACES
from rap_trainer.plan_inputs import model_hash
from rap_trainer.profiling.device import device_of

STAGES = ("lanes", "scan", "select", "bases", "values", "compare", "program")


def cpu_profile(job: RAPJob, *, beside_s: float, step_s: float, seconds_per_byte: float) -> Profile:
    """Beside the backward pass any work up to ten times `beside_s` adds just `beside_s`."""
    curves = {"mlp_bwd": ((0.1 * beside_s, beside_s), (10 * beside_s, beside_s))}
    windows = [WindowProfile(name=INPUT_DIST, seconds=0.0)]
    for name in PLACES:
        responses = tuple(
            Response(kind=kind, num_bytes=1000, solo_seconds=solo_s, added_seconds=added_s)
            for kind in ("memory", "compute")
            for solo_s, added_s in curves.get(name, ())
        )
        windows.append(WindowProfile(name=name, seconds=None, responses=responses))
    rates = Rates(
        launch_seconds=0.0, seconds_per_byte=seconds_per_byte, seconds_per_op=0.0, full_tiles=1.0, error_ratio=0.2
    )
    return Profile(
        device=device_of(torch.device("cpu")),
        date="2026-11-29",
        source="made up for tests",
        model_hash=model_hash(job),
        batch_size=job.spec.trainer.batch_size_per_gpu,
        num_ranks=job.spec.trainer.world_size,
        step_seconds=step_s,
        windows=tuple(windows),
        links=Links(bytes_per_second=1e12),
        coefficients=Coefficients(stages=dict.fromkeys(STAGES, rates), error_ratio=0.2),
    )
