"""What the captured runtime keeps of a step, and what of it may be tuned. Values."""

from __future__ import annotations

from dataclasses import dataclass

from rap_trainer.captured.agreement import Agreement
from rap_trainer.captured.schedule import Schedule
from rap_trainer.captured.sizes import Size
from rap_trainer.step.stages import StepState


@dataclass(kw_only=True)
class CapturedState(StepState):
    """A step on its way through the captured runtime."""

    slot: int
    preprocessed: bool = False
    """Its preprocessing is enqueued, in the graph of the step before."""
    size: Size | None = None
    """In whose buffers it is; None: in none, for it fits into none there is."""
    agreement: Agreement | None = None
    """The smallest captured size that it fits into on every rank; None: nothing to agree on."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What changes how fast a step is, never what it learns."""

    schedule: Schedule | None = None
    """None: everything beside the exchange of lookup outputs, until a plan says better."""
    exchange: str = "auto"
    """auto (the faster one here), copy-engine, or nccl."""
    sort_early: bool = True
    """The tables' backward sorts ids before their gradients arrive."""
    direct: bool = True
    """Single ids are looked up straight into the buffers that are read, where tables and exchange allow it."""
    hang_s: float = 60
    """A step that takes so long is reported."""


DEFAULT_TUNING = Tuning()
