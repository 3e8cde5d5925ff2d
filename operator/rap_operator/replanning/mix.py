"""Data or a machine that never stands still for a window: after a while the mix itself is what is planned for. Pure.

A plan for the mean of before and after suits neither, so a change is waited for. What comes and goes for longer than that has no
after: windows several times as long, whose halves are alike, say what it is on the whole. Not here: what a mix leads to.
"""

from __future__ import annotations

from rap_contract.status import time_text

from rap_operator.replanning import triggers
from rap_operator.replanning.case import Case
from rap_operator.replanning.gates import Held
from rap_operator.replanning.values import Window
from rap_operator.replanning.window import AROUND, widened

LASTS = 2 * AROUND
"""Windows: a change that happens once is found in the windows around it for AROUND of them, one that lasts as long and goes back for twice that."""


def noticed(case: Case, window: Window, *, is_over: bool) -> Case:
    """Restlessness begins with a trigger over its bound in a window that changes; it ends with a window that is like all around it."""
    since = case.state.restless_since
    if since is None and not is_over:
        return case
    is_restless = bool(triggers.unsteady(case.policy, window)) or (
        since is not None and (not window.around or bool(triggers.unlike(case.policy, window)))
    )
    return case.with_state(restless_since=(since or time_text(case.now_s)) if is_restless else None)


def has_lasted(case: Case) -> bool:
    """It goes on for so long that no end of it is waited for."""
    since = case.state.restless_since
    return since is not None and case.since_s(since) >= LASTS * case.policy.window_seconds


def steady(case: Case, window: Window) -> Window | None:
    """The mix as one window; None while its own halves differ."""
    wide = widened(window)
    return None if wide is None or triggers.unsteady(case.policy, wide) else wide


def unsteady(case: Case, window: Window) -> Held | None:
    """Why no plan is searched for this window: it changes, or it is only one side of what comes and goes."""
    still = triggers.unsteady(case.policy, window) or (triggers.unlike(case.policy, window) if has_lasted(case) else "")
    return Held(reason="Unsteady", message=still) if still else None
