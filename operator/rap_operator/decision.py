"""What a pass wants done. Values only; each action says why."""

from __future__ import annotations

from dataclasses import dataclass

from rap_contract.status import Status

from rap_operator.notice import Notice
from rap_operator.replanning.values import Act


@dataclass(frozen=True, kw_only=True)
class KeepSupport:
    """The Service, the ConfigMaps and the PDB are there and as they should be; specs not kept are gone."""

    revision: str
    nodes: int
    kept: frozenset[str]
    """Revisions whose ConfigMaps stay."""
    is_spec_only: bool = False
    """Only the spec is stored; the rest is made with the attempt, so that new jobs do not wait for each other's."""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class StartAttempt:
    """Create the Job of a recorded attempt, once no pod of another is left."""

    number: int
    revision: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RemoveAttempt:
    """Delete an attempt's Job; it stays visible until its pods are gone."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RemovePod:
    """Delete a pod whose Job is gone, or one whose node does not answer."""

    name: str
    uid: str
    is_forced: bool
    """Without grace: nobody will confirm its end."""
    why: str


@dataclass(frozen=True, kw_only=True)
class RemoveSelf:
    """Delete the RAPJob: its time after the end is over."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Replan:
    """Something about the job's plan (`replanning.values.Act`), and a decision about it to count."""

    acts: tuple[Act, ...] = ()
    counted: tuple[str, str] | None = None
    """Outcome and reason."""


Action = KeepSupport | StartAttempt | RemoveAttempt | RemovePod | RemoveSelf | Replan


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, in order; then the status to write; then what to tell; when to look again."""

    status: Status
    actions: tuple[Action, ...] = ()
    notices: tuple[Notice, ...] = ()
    requeue_s: float | None = None
