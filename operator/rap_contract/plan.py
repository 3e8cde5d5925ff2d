"""A plan: where each feature is preprocessed, when each fused kernel runs, and what that is predicted to cost.

An immutable value with a content hash. It holds decisions and predictions, and no way of finding them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from rap_contract.json_text import canonical, digest, parse_json, read_document
from rap_contract.model import Model
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import Count, Name, Programs, Seconds, Stage
from rap_contract.windows import INLINE, ORDER

PLAN_VERSION = 1
HINT = "plans are made by `rap plan`; make it again instead of editing it"
OWN_ROWS = None
"""Mapping of a feature that each rank preprocesses for its own rows."""

Rank = Annotated[int, Field(ge=0, lt=65_536)]


class FusedKernel(Model):
    """One launch of the fused program."""

    launch: int = Field(ge=0, lt=100_000)
    """Its place among the program's launches."""
    stage: Stage
    wave: int = Field(ge=0)
    features: tuple[Name, ...]


class Placement(Model):
    """When a kernel runs, and with how many programs."""

    window: str = INLINE
    """A place of `rap_contract.windows.ORDER`."""
    programs: Programs = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.window not in ORDER:
            raise ValueError(f"unknown window; one of {', '.join(ORDER)}")
        return self


class Part(Model):
    """A named part of the predicted step; parts of a step add up to it."""

    name: Name
    seconds: float = Field(ge=-3600, le=3600)


class KernelPrediction(Model):
    """What one kernel costs on the slowest rank."""

    solo_seconds: Seconds
    """Alone, with its grid."""
    added_seconds: Seconds
    """What the step grows by."""
    num_bytes: Count
    reason: str = Field(max_length=400)
    """Why here."""


class Rejected(Model):
    """An alternative that was looked at, and what it would cost more."""

    what: str = Field(max_length=400)
    more_seconds: float = Field(ge=-3600, le=3600)


class Prediction(Model):
    """What the plan is predicted to cost."""

    parts: tuple[Part, ...]
    kernels: tuple[KernelPrediction, ...]
    inline_seconds: Seconds
    """The step with everything inline and on its own rows."""
    bound_seconds: Seconds
    """No plan of this job can be faster, by the same model."""
    error_seconds: Seconds
    rejected: tuple[Rejected, ...] = ()
    sensitivity: tuple[str, ...] = ()
    indicative: bool = False
    """Made from a profile of another machine or model."""

    @property
    def step_seconds(self) -> float:
        return sum(part.seconds for part in self.parts)


class Plan(Model):
    """Mapping, fused kernels and schedule of a job, with the prediction they were chosen by."""

    version: int = Field(default=PLAN_VERSION, ge=PLAN_VERSION, le=PLAN_VERSION)
    job: Name
    num_ranks: int = Field(ge=1, le=65_536)
    profile_hash: str = Field(pattern=r"^[0-9a-f]{16}$")
    mapping: Mapping[Name, Rank | None]
    """By feature: None for its own rows on every rank, else the rank that owns its table."""
    kernels: tuple[FusedKernel, ...] = Field(max_length=100_000)
    schedule: tuple[Placement, ...]
    """Of each kernel, in their order."""
    prediction: Prediction
    hash: str = Field(default="", pattern=r"^([0-9a-f]{16})?$")
    """Of everything else; filled in when the plan is made, checked when it is read."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not len(self.kernels) == len(self.schedule) == len(self.prediction.kernels):
            raise ValueError("kernels, schedule and predictions must be equally many")
        if [kernel.launch for kernel in self.kernels] != list(range(len(self.kernels))):
            raise ValueError("kernels must list the launches 0, 1, ... in order")
        order = [ORDER[placement.window] for placement in self.schedule]
        if order != sorted(order):
            raise ValueError("a kernel cannot run in an earlier window than the kernel before it")
        if any(rank is not None and rank >= self.num_ranks for rank in self.mapping.values()):
            raise ValueError(f"a feature is mapped to a rank beyond the plan's {self.num_ranks}")
        if not self.hash:
            object.__setattr__(self, "hash", self.content_hash)
        return self

    @property
    def content_hash(self) -> str:
        """What `hash` must be."""
        return digest(canonical(self, without=frozenset({"hash"})))

    @property
    def owned(self) -> tuple[str, ...]:
        """Features preprocessed by the owner of their table."""
        return tuple(name for name, rank in self.mapping.items() if rank is not OWN_ROWS)

    def to_json(self) -> str:
        """Canonical JSON, byte for byte equal for equal plans."""
        return canonical(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises InvalidDocument with every problem; a plan whose content does not match its hash was edited."""
        document = parse_json(text, hint=HINT)
        plan = read_document(cls, document, hint=HINT)
        if document.get("hash") != plan.content_hash:
            message = "the plan was changed after it was made: its content does not match its hash"
            raise InvalidDocument([Problem(path=("hash",), message=message, hint=HINT, value=plan.content_hash)])
        return plan
