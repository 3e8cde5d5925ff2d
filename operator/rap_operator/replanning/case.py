"""What one decision looks at, and how its verdicts are worded. Values only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rap_contract.operations import Replanning
from rap_contract.status import Change, ReplanRecord, Replans, time_s, time_text

from rap_operator.notice import Notice
from rap_operator.replanning.record import record
from rap_operator.replanning.values import Act, Seen, Verdict

COMMANDS = ("approve", "reject", "refresh")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Spec, status and world of one decision, and its moment (seconds since the epoch)."""

    policy: Replanning
    state: Replans
    seen: Seen
    now_s: float
    history: tuple[ReplanRecord, ...] = ()
    """Decisions before, newest first."""

    def with_state(self, **parts: object) -> Case:
        """The case with parts of its status replaced."""
        if all(getattr(self.state, name) == value for name, value in parts.items()):
            return self
        return replace(self, state=self.state.model_copy(update=parts))

    def since_s(self, moment: str) -> float:
        """Seconds since a moment; a moment in the future, after a clock was set back, counts as now."""
        return max(self.now_s - time_s(moment), 0.0)

    def quiet(self, status: str, reason: str, message: str = "", *, wake_s: float | None = None) -> Verdict:
        """Nothing is decided; only the condition says why."""
        assert status in ("True", "False", "Unknown")
        return Verdict(state=self.state, condition=(status, reason, message), wake_s=wake_s)  # type: ignore[arg-type]

    def decided(
        self,
        outcome: str,
        reason: str,
        message: str,
        *,
        plans: tuple[str, str] = ("", ""),
        numbers: dict[str, float | None] | None = None,
        acts: tuple[Act, ...] = (),
        wake_s: float | None = None,
    ) -> Verdict:
        """A decision with its record; one that changes something is also told as an event."""
        is_under_way = self.state.change is not None
        notices: tuple[Notice, ...] = ()
        if outcome != "None":
            is_bad = outcome in ("Reverting", "Reverted", "PlanLost", "PlanMended")
            level: Literal["Normal", "Warning"] = "Warning" if is_bad else "Normal"
            text = f"{reason}: {message}" if message else reason
            notices = (
                Notice(reason=f"Replan{outcome}" if "Plan" not in outcome else outcome, message=text, level=level),
            )
        return Verdict(
            state=self.state,
            record=record(outcome, reason, message, now_s=self.now_s, plans=plans, numbers=numbers),
            condition=("True" if is_under_way else "False", reason if not is_under_way else outcome, message),
            acts=acts,
            notices=notices,
            wake_s=wake_s,
        )

    @property
    def command(self) -> str:
        """approve, reject or refresh, if the annotation was not acted upon yet."""
        is_news = self.seen.annotation != self.state.answered
        return self.seen.command if is_news and self.seen.command in COMMANDS else ""

    def answered(self) -> Case:
        """The case with the annotation acted upon."""
        return self.with_state(answered=self.seen.annotation[:253])

    def begun(self, change: Change, **parts: object) -> Case:
        """The case with a change in a new state, from now on."""
        moved = change.model_copy(update={"since": time_text(self.now_s), **parts})
        return self.with_state(change=moved)
