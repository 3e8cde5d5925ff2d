"""Whether and when the ranks of this machine start again. Pure.

In a pod the operator decides that; there an attempt is all there is.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rap_contract.operations import RestartPolicy
from rap_contract.pod import ExitCode

FINAL = frozenset({ExitCode.DONE, ExitCode.INVALID, ExitCode.DATA_BUDGET, ExitCode.CHECKPOINT, ExitCode.DIVERGED})
"""A restart does not help."""
INTERRUPTED = 128 + signal.SIGINT


class Action(Enum):
    """What to do after an attempt."""

    END = "end"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The action and the pause before it."""

    action: Action
    delay_s: float = 0.0


class Restarts:
    """Counts failures against the policy."""

    def __init__(self, policy: RestartPolicy, *, managed: bool) -> None:
        self._policy = policy
        self._managed = managed
        self._failures = 0

    def after(self, code: int, *, healthy_s: float, stopping: bool) -> Verdict:
        """The verdict on an attempt that ran for `healthy_s` and ended with `code`; `stopping`: it was asked to."""
        if self._managed or stopping or code in (ExitCode.DONE, ExitCode.TERMINATED, INTERRUPTED):
            return Verdict(action=Action.END)
        action = self._rule(code)
        if action == "Fail" or (action is None and code in FINAL):
            return Verdict(action=Action.END)
        if healthy_s >= self._policy.reset_after_seconds:
            self._failures = 0
        if action == "Ignore":
            return Verdict(action=Action.RESTART, delay_s=float(self._policy.delay_seconds))
        self._failures += 1
        if self._failures > self._policy.max_restarts:
            return Verdict(action=Action.END)
        delay_s = min(self._policy.delay_seconds * 2.0 ** (self._failures - 1), self._policy.max_delay_seconds)
        return Verdict(action=Action.RESTART, delay_s=delay_s)

    def _rule(self, code: int) -> str | None:
        for rule in self._policy.rules:
            if (not rule.exit_codes or code in rule.exit_codes) and not rule.reasons:
                return rule.action
        return None


def group_code(codes: Sequence[int]) -> int:
    """The code that says most of a group: a failure of its own, then a lost peer, then a stop, then the end."""
    own = [code for code in codes if code not in (ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.TERMINATED)]
    if own:
        named = [code for code in own if code in FINAL]
        return min(named or own)
    return next((int(code) for code in (ExitCode.PEER_LOST, ExitCode.TERMINATED) if code in codes), int(ExitCode.DONE))
