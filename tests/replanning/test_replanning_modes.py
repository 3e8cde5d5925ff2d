"""Off, Observe, Propose and Auto: what each does with a plan that is worth it, and what answers a proposal."""

from __future__ import annotations

from typing import Any

import pytest
from rap_contract.operations import Replanning
from rap_operator.replanning.values import Ask, Forget, Verdict
from replanning.judged_job import BASELINE, NEW, OLD, POLICY, changed, readings, verdict


def policy(**parts: Any) -> Replanning:
    return POLICY.model_copy(update=parts)


def test_off_does_nothing_at_all() -> None:
    found = verdict(policy(mode="Off"))
    assert (found.condition[1], found.acts, found.record) == ("Off", (), None)


def test_observe_says_what_it_would_do() -> None:
    found = verdict(policy(mode="Observe"))
    assert found.record is not None
    assert (found.record.outcome, found.record.plan) == ("WouldSwitch", NEW)
    assert found.state.change is None
    assert [type(act) for act in found.acts] == [Forget]


def proposed(annotation: str = "", **parts: Any) -> Verdict:
    return verdict(policy(mode=parts.pop("mode", "Propose")), changed("Proposed"), annotation=annotation, **parts)


def test_propose_stores_and_waits() -> None:
    found = verdict(policy(mode="Propose"))
    assert found.state.change is not None
    assert found.state.change.state == "Proposed"
    assert f"approve:{NEW}" in found.notices[0].message
    waiting = proposed()
    assert (waiting.record, waiting.acts, waiting.condition[:2]) == (None, (), ("True", "Proposed"))


@pytest.mark.parametrize("annotation", ["approve", f"approve:{NEW}"])
def test_an_approval_is_acted_upon_once(annotation: str) -> None:
    found = proposed(annotation)
    assert found.state.change is not None
    assert (found.state.change.state, found.state.answered) == ("Applying", annotation)
    later = verdict(
        policy(mode="Propose"),
        found.state.model_copy(update={"change": changed("Proposed").change}),
        annotation=annotation,
    )
    assert later.condition[:2] == ("True", "Proposed")


@pytest.mark.parametrize("annotation", [f"approve:{OLD}", "yes", "approve!"])
def test_an_answer_to_something_else_is_none(annotation: str) -> None:
    assert proposed(annotation).condition[:2] == ("True", "Proposed")


def test_a_rejected_plan_is_not_proposed_again() -> None:
    found = proposed("reject")
    assert found.state.change is None
    later = verdict(policy(mode="Propose"), found.state.model_copy(update={"searched_at": None, "baseline": BASELINE}))
    assert later.record is not None
    assert later.record.reason == "KnownIneffective"


def test_a_refresh_searches_anew_even_without_a_trigger() -> None:
    dropped = proposed("refresh:1")
    assert dropped.state.change is None
    asked = verdict(
        policy(mode="Propose"),
        dropped.state,
        annotation="refresh:1",
        readings=readings(lists={"cat": 20.0}),
        proposal=None,
    )
    assert [type(act) for act in asked.acts] == [Ask]
    done = verdict(
        policy(mode="Propose"), dropped.state, annotation="refresh:1", readings=readings(lists={"cat": 20.0})
    )
    assert done.state.change is not None
    assert done.state.answered == "refresh:1"


def test_a_proposal_nobody_answers_is_dropped_and_auto_is_an_answer() -> None:
    expired = verdict(policy(mode="Propose"), changed("Proposed", since_s=4000))
    assert expired.record is not None
    assert expired.record.reason == "ProposalExpired"
    taken = proposed(mode="Auto")
    assert taken.state.change is not None
    assert taken.state.change.state == "Applying"
    lost = proposed(stored=frozenset({OLD}))
    assert lost.state.change is None
