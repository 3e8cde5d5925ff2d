"""The two values a decision is built with: what it looks at, and what it has come to so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rap_contract.status import Status

from rap_operator.decision import Action
from rap_operator.notice import Notice
from rap_operator.observed import Judged, Observed
from rap_operator.policy import Limits, Policy


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Everything a decision may depend on."""

    judged: Judged
    observed: Observed
    policy: Policy
    limits: Limits
    now_s: float

    @property
    def generation(self) -> int:
        return self.observed.subject.generation


@dataclass(frozen=True, kw_only=True)
class Step:
    """A decision in the making."""

    status: Status
    actions: tuple[Action, ...] = ()
    notices: tuple[Notice, ...] = ()
    wakes_s: tuple[float, ...] = ()
    """Seconds from now at which something may be due."""

    def with_status(self, status: Status) -> Step:
        return replace(self, status=status)

    def with_action(self, action: Action) -> Step:
        return replace(self, actions=(*self.actions, action))

    def with_notice(self, notice: Notice) -> Step:
        return replace(self, notices=(*self.notices, notice))

    def waking(self, after_s: float) -> Step:
        return replace(self, wakes_s=(*self.wakes_s, max(after_s, 0.0)))
