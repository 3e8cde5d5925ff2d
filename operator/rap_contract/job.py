"""RAPJob: the one document a user writes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rap_contract.features import Feature, Name
from rap_contract.model import Model
from rap_contract.operations import Replanning, RestartPolicy, Seconds
from rap_contract.source import Source
from rap_contract.training import Checkpoint, Evaluation, ModelSpec, Optimizer, Publish, Trainer

GROUP = "rap.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RAPJob"


class Metadata(Model):
    """Kubernetes object metadata; only the name matters to a local run."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """Name of the job."""
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RAPJobSpec(Model):
    """What to train, from what, and how."""

    source: Source
    """Where events come from."""
    columns: Annotated[dict[Name, str], Field(min_length=1, max_length=10_000)]
    """Columns of an event with their types; patterns such as `int_{0..12}` allowed."""
    label: Name
    """Column with the label, 0 or 1."""
    features: Annotated[list[Feature], Field(min_length=1, max_length=10_000)]
    """Groups of features."""
    model: ModelSpec
    """The model."""
    optimizer: Optimizer = Optimizer()
    """The optimizers."""
    trainer: Trainer = Trainer()
    """The processes that train."""
    checkpoint: Checkpoint
    """Where the whole state is saved."""
    evaluation: Evaluation = Evaluation()
    """How the model is judged while it trains."""
    publish: Publish | None = None
    """Where the serving model goes."""
    replanning: Replanning = Replanning()
    """When measurements change the plan."""
    restart_policy: RestartPolicy = RestartPolicy()
    """How a failed job starts again."""
    suspend: bool = False
    """Stop after a checkpoint and release the pods; resume on false."""
    active_deadline_seconds: Seconds | None = None
    """The job fails when it has run so long."""
    stall_seconds: Seconds = 900
    """No step or no checkpoint progress for so long is a stall: the attempt is replaced; 0: never."""
    ttl_seconds_after_finished: Seconds | None = None
    """The finished job is deleted after so long."""
    managed_by: str | None = Field(default=None, max_length=63)
    """Another controller that owns this job; this operator then leaves it alone."""
    restart_nonce: int = Field(default=0, ge=0)
    """Change it to restart the job from a fresh checkpoint."""


class RAPJob(Model):
    """A recommendation model retrained continuously on fresh events."""

    api_version: Literal["rap.dev/v1alpha1"]
    kind: Literal["RAPJob"]
    metadata: Metadata
    spec: RAPJobSpec
    status: dict[str, Any] | None = None
    """Written by the operator; ignored by a local run."""
