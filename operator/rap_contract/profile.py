"""What was measured of a device and a model (`Profile`), and of the data (`Workload`). Values; nothing here measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rap_contract.json_text import canonical, digest, parse_json, read_document
from rap_contract.model import Model
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.windows import HOST_GAPS, INPUT_DIST, OPTIMIZER, PLACES

SCHEMA_VERSION = 2
HINT = "measure again with `rap profile`"

Name = Annotated[str, Field(min_length=1, max_length=253)]
Seconds = Annotated[float, Field(ge=0, le=3600)]
Positive = Annotated[float, Field(gt=0, le=1e18)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Programs = Annotated[int, Field(ge=1, le=2**20)] | None
"""Grid size of a launch; None is the kernel's own full grid."""
Kind = Literal["memory", "compute"]
KINDS: tuple[Kind, ...] = ("memory", "compute")
Stage = Literal["lanes", "scan", "select", "bases", "values", "compare", "program"]
"""Kinds of kernels: launches of the fused program, or the whole eager program."""


ListShape = Annotated[tuple[Annotated[float, Field(ge=0, le=1e6)], ...], Field(max_length=64)]
"""Lengths of equal shares of the lists, the shortest first, of which only the proportions count; empty: all are as long."""


class Device(Model):
    """What it was measured on."""

    name: Name
    memory_bytes: Count
    driver: str = Field(max_length=253)
    versions: Mapping[str, str] = {}
    """Software by name: torch, triton, torchrec."""


class TileWork(Model):
    """A tile of one kernel: a piece of its work that one program does at a time."""

    num_bytes: Annotated[float, Field(ge=0, le=1e15)] = 0.0
    ops: Mapping[Name, Annotated[float, Field(ge=0, le=1e15)]] = {}
    """Element functions applied, by name."""


class KernelSample(Model):
    """One kernel measured alone."""

    stage: Stage
    launch: int = Field(default=0, ge=0, lt=100_000)
    """Its place among the program's launches."""
    num_tiles: Positive = 1.0
    mean_tile: TileWork
    """Of all tiles."""
    critical_tile: TileWork = TileWork()
    """Of the feature with the longest chain: a grid ends no sooner than its slowest tile."""
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
    ids_leave_seconds: Seconds = 0.0
    """What the step loses, besides the work, if the last kernel ends here and ids leave for their owners; 0: not measured."""


Rate = Annotated[float, Field(ge=0, le=1)]


class Narrow(Model):
    """Terms of a kernel whose grid is bounded: its programs take tiles in rounds, one after the other."""

    launch_seconds: Seconds
    seconds_per_byte: Rate
    """Of one program."""
    seconds_per_op: Rate
    """Of an element function that `ops` does not name; of one program."""
    ops: Mapping[Name, Rate] = {}
    imbalance: float = Field(default=0.0, ge=0, le=1e4)
    """Of the costliest tile's work in one program."""
    tiles_at_once: Positive = 1.0
    """Tiles a program takes at a time where its grid is bounded."""
    whole_rounds: bool = True
    """Tiles cost alike, so a round that is begun is waited for; else programs that had cheap tiles take more of them."""


class Rates(Model):
    """Terms of the latency of one kernel, or of one kind of kernels, fitted on its samples."""

    launch_seconds: Seconds
    seconds_per_byte: Rate
    seconds_per_op: Rate
    """Of an element function that `ops` does not name."""
    ops: Mapping[Name, Rate] = {}
    """Seconds of an element function, by name."""
    imbalance: float = Field(default=0.0, ge=0, le=1e4)
    """Of the costliest tile's work at these rates times `full_tiles`: what a grid waits for its slowest program."""
    full_tiles: Positive
    """Tiles from which on the device is full; with fewer, more work of the same tiles costs no more time."""
    narrow: Narrow | None = None
    """With a bounded grid; None: not measured, bandwidth is shared by programs out of `full_tiles`."""
    error_ratio: float = Field(ge=0, le=10)
    """Of a prediction: nine of ten kernels that were not fitted are within it."""


class Coefficients(Model):
    """What kernels cost: each launch of the profiled job, and kinds of kernels for any other."""

    stages: Mapping[Stage, Rates] = Field(min_length=1)
    launches: tuple[tuple[Stage, Rates], ...] = ()
    """Of the job's launches, in order."""
    error_ratio: float = Field(ge=0, le=10)
    """Over all of them."""

    def of(self, kernels: Sequence[Stage]) -> tuple[Rates, ...]:
        """Rates of each kernel of a program: its launch's if it is the profiled one, else its kind's.

        A kind that was not measured is priced as the dearest that was.
        """
        if [stage for stage, _ in self.launches] == list(kernels):
            return tuple(rates for _, rates in self.launches)
        dearest = max(self.stages.values(), key=lambda rates: (rates.seconds_per_op, rates.seconds_per_byte))
        return tuple(self.stages.get(stage, dearest) for stage in kernels)


class Links(Model):
    """Between ranks."""

    bytes_per_second: Positive
    """One direction of one rank."""
    latency_seconds: Seconds = 0.0


class Profile(Model):
    """Everything measured of one model on one device."""

    schema_version: Literal[2] = 2
    device: Device
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}")
    source: str = Field(min_length=1, max_length=2000)
    """Where the numbers come from."""
    model_hash: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """Of the model it was measured with; None: of none in particular, its predictions are only indicative."""
    runtime: Literal["captured", "eager"] = "captured"
    """Whose step was measured."""
    batch_size: int = Field(ge=1)
    num_ranks: int = Field(ge=1, le=65_536)
    step_seconds: Annotated[float, Field(gt=0, le=3600)]
    """The step with its inputs preprocessed beforehand, exchange of inputs included."""
    windows: tuple[WindowProfile, ...]
    """The exchange of inputs and every place; the optimizer and the host's gaps if they were measured."""
    links: Links
    coefficients: Coefficients
    list_shape: ListShape = ()
    """Of the lists it was measured with: what a workload that names none is taken to have."""
    samples: tuple[KernelSample, ...] = Field(default=(), max_length=100_000)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [window.name for window in self.windows]
        wanted = (INPUT_DIST, *PLACES)
        missing = [name for name in wanted if name not in names]
        unknown = [name for name in names if name not in (*wanted, OPTIMIZER, HOST_GAPS)]
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
    list_shape: ListShape = ()
    null_ratio: float = Field(default=0.0, ge=0, le=1)

    def shaped(self, shape: ListShape) -> Self:
        """With this shape if none is known; lists that hold one element each have none."""
        return self if self.list_shape or self.mean_list_length <= 1 else self.model_copy(update={"list_shape": shape})


class Workload(Model):
    """What the stream's data is like, by raw column; columns not named have the default."""

    default: GroupWorkload = GroupWorkload()
    columns: Mapping[str, GroupWorkload] = {}

    def of(self, column: str) -> GroupWorkload:
        return self.columns.get(column, self.default)

    def shaped(self, shape: ListShape) -> Self:
        """With this shape where none is known."""
        known = {name: load.shaped(shape) for name, load in self.columns.items()}
        return self.model_copy(update={"default": self.default.shaped(shape), "columns": known})
