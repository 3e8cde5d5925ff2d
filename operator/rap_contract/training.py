"""What is trained and how: model, optimizers, trainer pods, checkpoints, evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rap_contract.model import Model

Layer = Annotated[int, Field(ge=1, le=65_536)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
Rate = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Eps = Annotated[float, Field(ge=0, le=1)]


class Dlrm(Model):
    """The built-in DLRM: bottom MLP, dot interaction, top MLP."""

    bottom: Annotated[list[Layer], Field(min_length=1, max_length=64)]
    """Layer sizes of the bottom MLP; the last is the tables' dim."""
    top: Annotated[list[Layer], Field(min_length=1, max_length=64)]
    """Layer sizes of the top MLP; the last is 1."""


class ModelSpec(Model):
    """The model: exactly one of dlrm and factory."""

    dlrm: Dlrm | None = None
    """The built-in DLRM."""
    factory: str | None = Field(default=None, max_length=512, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, called with the job and its embedding tables; it returns a module."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.dlrm is None) == (self.factory is None):
            raise ValueError("exactly one of dlrm and factory")
        return self


class Sgd(Model):
    """Stochastic gradient descent."""

    lr: Rate
    momentum: Beta = 0.0
    weight_decay: Decay = 0.0


class EmbeddingSgd(Model):
    """Exact SGD on the rows a batch touches."""

    lr: Rate
    weight_decay: Decay = 0.0


class Adagrad(Model):
    """Adagrad."""

    lr: Rate
    eps: Eps = 1e-8
    weight_decay: Decay = 0.0


class Adam(Model):
    """Adam."""

    lr: Rate
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Eps = 1e-8
    weight_decay: Decay = 0.0


class _OneOf(Model):
    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = list(type(self).model_fields)
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"exactly one of {', '.join(names)}")
        return self

    @property
    def chosen(self) -> tuple[str, Model]:
        """Name and parameters of the optimizer."""
        return next((n, v) for n in type(self).model_fields if (v := getattr(self, n)) is not None)


class DenseOptimizer(_OneOf):
    """Optimizer of the MLPs: exactly one."""

    sgd: Sgd | None = None
    adagrad: Adagrad | None = None
    adam: Adam | None = None
    adamw: Adam | None = None


class EmbeddingOptimizer(_OneOf):
    """Optimizer of the tables, fused into their backward pass: exactly one."""

    sgd: EmbeddingSgd | None = None
    adagrad: Adagrad | None = None
    rowwise_adagrad: Adagrad | None = None
    adam: Adam | None = None
    partial_rowwise_adam: Adam | None = None
    lamb: Adam | None = None


class Optimizer(Model):
    """Optimizers of the two parts of the model."""

    dense: DenseOptimizer = DenseOptimizer(adagrad=Adagrad(lr=0.01))
    """Of the MLPs."""
    embedding: EmbeddingOptimizer = EmbeddingOptimizer(rowwise_adagrad=Adagrad(lr=0.02))
    """Of the tables."""


class Trainer(Model):
    """The processes that train."""

    image: str = Field(default="rap-trainer:0.1.0", min_length=1, max_length=1024)
    """Container image."""
    nodes: int = Field(default=1, ge=1, le=1024)
    """Number of pods."""
    gpus_per_node: int = Field(default=0, ge=0, le=16)
    """GPUs and ranks of a pod; 0 trains on CPUs."""
    processes_per_node: int = Field(default=1, ge=1, le=64)
    """Ranks of a pod that trains on CPUs."""
    batch_size_per_gpu: int = Field(default=4096, ge=1, le=1_048_576)
    """Rows of a rank's batch, on a CPU rank too."""
    runtime: Literal["auto", "eager", "captured"] = "auto"
    """Eager: any shape; captured: CUDA graphs; auto: captured where it can."""
    precision: Literal["tf32", "fp32", "bf16"] = "tf32"
    """Arithmetic of the dense part on a GPU; a CPU computes in fp32."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of everything random."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after so many optimizer steps of the job's whole life."""
    max_wait_ms: int = Field(default=1000, ge=1, le=3_600_000)
    """Train a partial batch when no full one has come for so long."""
    metrics_port: int = Field(default=9400, ge=0, le=65_472)
    """Port of Prometheus metrics of a node's first rank, its next ranks' follow; 0 serves none."""
    metrics_secret_name: str | None = Field(default=None, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    """Secret with `tls.crt` and `tls.key`, and `token` if readers must send one: metrics over HTTPS."""
    pod_template: dict[str, Any] = {}
    """Merged into the pods' template (strategic merge)."""

    @property
    def ranks_per_node(self) -> int:
        return self.gpus_per_node or self.processes_per_node

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


class Checkpoint(Model):
    """Where and how often the whole state is saved."""

    path: Path
    """Directory, shared by all pods."""
    interval_seconds: float = Field(default=300, gt=0, le=86_400)
    """Seconds between checkpoints."""
    keep: int = Field(default=3, ge=1, le=1000)
    """How many are kept."""


class Evaluation(Model):
    """Every batch is scored before it is learned from."""

    window_rows: int = Field(default=1_000_000, ge=1, le=10**12)
    """Rows of the sliding window of normalized entropy, AUC and calibration."""
    max_normalized_entropy: float | None = Field(default=None, gt=0, le=100)
    """Guard: a full window above this is divergence; NaN and Inf always are."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """Stop with exit code 5, or go back to the last good checkpoint once and skip the rows since."""


class Publish(Model):
    """Where the serving model goes."""

    path: Path
    """Directory."""
    interval_seconds: float = Field(default=900, gt=0, le=31_536_000)
    """Seconds between versions; a run that ends publishes its last model."""
    keep: int = Field(default=3, ge=1, le=1000)
    """Newest versions that stay."""
