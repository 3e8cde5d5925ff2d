"""A profile of a job on CPUs, made up: few rows hide beside the lookup, many only beside the dense backward pass.

So the planner's answer depends on list lengths, on a machine without a GPU and without measuring anything.
"""

from __future__ import annotations

from rap_contract.job import RAPJob
from rap_contract.profile import Coefficients, Device, Links, Profile, Rates, Response, WindowProfile
from rap_contract.windows import INPUT_DIST, PLACES
from rap_trainer.plan_inputs import model_hash

STAGES = ("lanes", "scan", "select", "bases", "values", "compare")


def cpu_profile(job: RAPJob, *, hidden_s: float, step_s: float, seconds_per_byte: float) -> Profile:
    """`hidden_s` of work hide beside the lookup for nothing; beside the backward pass thrice that, for a third of it."""
    small = ((0.5 * hidden_s, 0.0), (hidden_s, 0.0))
    large = ((0.5 * hidden_s, 0.3 * hidden_s), (4 * hidden_s, 0.3 * hidden_s))
    curves = {"emb_fwd": small, "mlp_bwd": large}
    windows = [WindowProfile(name=INPUT_DIST, seconds=0.0)]
    for name in PLACES:
        responses = tuple(
            Response(kind=kind, num_bytes=1000, solo_seconds=solo_s, added_seconds=added_s)
            for kind in ("memory", "compute")
            for solo_s, added_s in curves.get(name, ())
        )
        windows.append(WindowProfile(name=name, seconds=None, responses=responses))
    rates = Rates(launch_seconds=0.0, seconds_per_byte=seconds_per_byte, seconds_per_op=0.0, error_ratio=0.2)
    return Profile(
        device=Device(name="cpu", memory_bytes=2**34, driver=""),
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
