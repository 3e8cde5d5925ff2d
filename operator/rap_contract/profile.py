"""What was measured of a device and a model (`Profile`), and of the data (`Workload`). Values; nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rap_contract.json_text import canonical, digest, parse_json, read_document
from rap_contract.model import Model
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.windows import INPUT_DIST, PLACES

SCHEMA_VERSION = 1
HINT = "measure again with `rap profile`"

Name = Annotated[str, Field(min_length=1, max_length=253)]
Seconds = Annotated[float, Field(ge=0, le=3600)]
Positive = Annotated[float, Field(gt=0, le=1e18)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Programs = Annotated[int, Field(ge=1, le=2**20)] | None
"""Grid size of a launch; None is the kernel's own full grid."""
Kind = Literal["memory", "compute"]
KINDS: tuple[Kind, ...] = ("memory", "compute")
Stage = Literal["lanes", "scan", "select", "bases", "values", "compare"]


class Device(Model):
    """What it was measured on."""

    name: Name
    memory_bytes: Count
    driver: str = Field(max_length=253)
    versions: Mapping[str, str] = {}
    """Software by name: torch, triton, torchrec."""


class KernelSample(Model):
    """One fused kernel measured alone."""

    stage: Stage
    num_bytes: Count
    """Read and written."""
    num_ops: Count
    """Element functions applied, each weighted by its cost."""
    largest_share: float = Field(ge=0, le=1)
    """Share of the kernel's work in its largest feature; 1/features when all are equal."""
    programs: Programs = None
    seconds: Annotated[float, Field(gt=0, le=3600)]


class Response(Model):
    """One probe beside the real step: what the step lost to it."""

    kind: Kind
    programs: Programs = None
    num_bytes: Count
    """Traffic of the probe."""
    solo_seconds: Annotated[float, Field(gt=0, le=3600)]
    """The probe alone."""
    added_seconds: Seconds
    """The step with the probe less the step without."""


class WindowProfile(Model):
    """A place of the step, and what it has left over as a function of traffic and grid size."""

    name: Name
    seconds: Seconds | None
    """None: not measured apart from the step."""
    responses: tuple[Response, ...] = Field(default=(), max_length=10_000)
    """Without any, nothing is assumed to hide here."""


class Coefficients(Model):
    """Terms of a fused kernel's latency, fitted on the samples."""

    launch_seconds: Seconds
    seconds_per_byte: float = Field(ge=0, le=1)
    seconds_per_op: float = Field(ge=0, le=1)
    imbalance_seconds_per_byte: float = Field(default=0.0, ge=0, le=1)
    """For bytes of the largest feature, which one part of the grid may have to do alone."""
    full_programs: Positive
    """Programs at which the full bandwidth is reached; fewer reach their share of it."""
    error_ratio: float = Field(ge=0, le=10)
    """Of a prediction: nine of ten kernels are within it."""


class Links(Model):
    """Between ranks."""

    bytes_per_second: Positive
    """One direction of one rank."""
    latency_seconds: Seconds = 0.0


class Profile(Model):
    """Everything measured of one model on one device."""

    schema_version: Literal[1] = 1
    device: Device
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}")
    source: str = Field(min_length=1, max_length=2000)
    """Where the numbers come from."""
    model_hash: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """Of the model it was measured with; None: of none in particular, its predictions are only indicative."""
    batch_size: int = Field(ge=1)
    num_ranks: int = Field(ge=1, le=65_536)
    step_seconds: Annotated[float, Field(gt=0, le=3600)]
    """The step with its inputs preprocessed beforehand, exchange of inputs included."""
    windows: tuple[WindowProfile, ...]
    links: Links
    coefficients: Coefficients
    samples: tuple[KernelSample, ...] = Field(default=(), max_length=100_000)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [window.name for window in self.windows]
        wanted = (INPUT_DIST, *PLACES)
        missing = [name for name in wanted if name not in names]
        unknown = [name for name in names if name not in wanted]
        if missing or unknown or len(set(names)) != len(names):
            raise ValueError(f"windows must be each of {', '.join(wanted)} once; missing {missing}, unknown {unknown}")
        if (self.window(INPUT_DIST).seconds or 0.0) > self.step_seconds:
            raise ValueError("the exchange of inputs takes longer than the step it is part of")
        return self

    @property
    def hash(self) -> str:
        """Of all content."""
        return digest(canonical(self))

    def window(self, name: str) -> WindowProfile:
        """A window by its name, which must exist."""
        return next(window for window in self.windows if window.name == name)

    def to_json(self) -> str:
        return canonical(self)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Raises InvalidDocument with every problem: NaN, missing windows, another schema version, broken JSON."""
        document = parse_json(text, hint=HINT)
        version = document.get("schemaVersion") if isinstance(document, dict) else None
        if isinstance(document, dict) and version != SCHEMA_VERSION:
            message = f"profiles of schema version {SCHEMA_VERSION} are read here"
            raise InvalidDocument([Problem(path=("schemaVersion",), message=message, hint=HINT, value=repr(version))])
        return read_document(cls, document, hint=HINT)

    def mismatches(self, *, device: str | None = None, model_hash: str | None = None) -> tuple[Problem, ...]:
        """Why this profile is not of that device or model; None is not compared."""
        pairs = (
            (("device", "name"), self.device.name, device, "device"),
            (("modelHash",), self.model_hash, model_hash, "model"),
        )
        return tuple(
            Problem(path=path, message=f"measured on another {what} than {wanted}", hint=HINT, value=str(mine))
            for path, mine, wanted, what in pairs
            if wanted is not None and mine is not None and mine != wanted
        )


class GroupWorkload(Model):
    """Of one feature group's columns."""

    mean_list_length: float = Field(default=1.0, ge=0, le=1e6)
    null_ratio: float = Field(default=0.0, ge=0, le=1)


class Workload(Model):
    """What the stream's data is like, by raw column; columns not named have the default."""

    default: GroupWorkload = GroupWorkload()
    columns: Mapping[str, GroupWorkload] = {}

    def of(self, column: str) -> GroupWorkload:
        return self.columns.get(column, self.default)
