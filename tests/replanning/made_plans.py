"""Plans made by hand for tests: any window, valid for a job's features, with a prediction that adds up."""

from __future__ import annotations

from rap_contract.graph import compile_features
from rap_contract.job import RAPJob
from rap_contract.plan import FusedKernel, KernelPrediction, Part, Placement, Plan, Prediction


def made_plan(job: RAPJob, window: str, *, step_s: float = 0.01, num_ranks: int | None = None) -> Plan:
    """One kernel of all features in a window."""
    graph, problems = compile_features(job.spec)
    assert graph is not None, problems
    names = tuple(feature.name for feature in graph.features)
    kernel = KernelPrediction(solo_seconds=0.001, added_seconds=0.0005, num_bytes=1000, reason="made for a test")
    return Plan(
        job=job.metadata.name,
        num_ranks=num_ranks or job.spec.trainer.world_size,
        profile_hash="0" * 16,
        mapping=dict.fromkeys(names),
        kernels=(FusedKernel(launch=0, stage="values", wave=0, features=names),),
        schedule=(Placement(window=window),),
        prediction=Prediction(
            parts=(Part(name="training", seconds=step_s),),
            kernels=(kernel,),
            inline_seconds=step_s,
            bound_seconds=step_s / 2,
            error_seconds=0.0,
        ),
    )
