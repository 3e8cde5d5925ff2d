"""Searches run in a process that may be late, hungry, or dead: the operator is told why and asks the next one all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rap_contract import metrics
from rap_contract.plan import Plan
from rap_operator.cache import Key
from rap_operator.replanning.searches import Limits, Search, Searches
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.replan.planning_page import PlanningPage
from replanning.cpu_profile import cpu_profile
from servers.waiting import wait_until
from train.small_jobs import small_job

KEY: Key = ("clicks", "job")
LIMIT_S = 120


class Ranks:
    """What the page asks of a runtime."""

    plan = None


def page(folder: Path) -> str:
    job = small_job(folder)
    profile = cpu_profile(job, beside_s=1e-5, step_s=0.01, seconds_per_byte=1e-8)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "profile.json").write_text(profile.to_json())
    return PlanningPage(job, MetricStore(metrics.TRAINER), Ranks())().decode()  # type: ignore[arg-type]  # a part of one


def searched(text: str, limits: Limits) -> Search:
    """The end of one search."""
    searches = Searches(lambda url: text, lambda key: None, limits=limits)
    searches.ask("u", KEY, url="http://rank-0/planning", request="r")
    try:
        wait_until(lambda: searches.num_running == 0, limit_s=LIMIT_S, what="the search's end")
        found = searches.found("u")
        assert found is not None
        return found
    finally:
        searches.close()


def test_a_search_answers_with_a_plan_that_can_be_read(tmp_path: Path) -> None:
    found = searched(page(tmp_path), Limits(deadline_s=LIMIT_S))
    assert found.proposal.state == "Done", found.proposal.message
    plan = Plan.from_json(found.plan)
    assert plan.hash == found.proposal.plan
    assert found.proposal.after_seconds <= found.proposal.before_seconds


def test_a_search_past_its_deadline_is_killed_and_said(tmp_path: Path) -> None:
    found = searched(page(tmp_path), Limits(deadline_s=0.02))  # less than a process takes to start
    assert found.proposal.state == "Failed"
    assert "took longer than" in found.proposal.message


def test_a_search_that_takes_too_much_memory_dies_alone_and_says_what_to_raise() -> None:
    hungry = json.dumps({"profile": "x" * (96 << 20)})
    found = searched(hungry, Limits(deadline_s=LIMIT_S, memory_bytes=64 << 20))
    assert found.proposal.state == "Failed"
    assert "memory" in found.proposal.message


@pytest.mark.parametrize(
    ("text", "words"),
    [("[]", "no JSON object"), ('{"error": "no profile here"}', "no profile here"), ("{", ""), ("{}", "")],
    ids=["list", "refused", "broken", "empty"],
)
def test_a_page_that_is_none_fails_with_its_reason(text: str, words: str) -> None:
    found = searched(text, Limits(deadline_s=LIMIT_S))
    assert found.proposal.state == "Failed"
    assert found.proposal.message
    assert words in found.proposal.message


def test_after_a_search_that_was_killed_the_next_one_is_answered(tmp_path: Path) -> None:
    texts = [json.dumps({"profile": "x" * (96 << 20)}), page(tmp_path)]
    searches = Searches(
        lambda url: texts[int(url)], lambda key: None, limits=Limits(deadline_s=LIMIT_S, memory_bytes=2 << 30)
    )
    try:
        for turn in range(2):
            searches.ask(str(turn), KEY, url=str(turn), request="r")
        wait_until(lambda: searches.num_running == 0, limit_s=LIMIT_S, what="both searches' ends")
        first, second = searches.found("0"), searches.found("1")
        assert first is not None
        assert second is not None
        assert (first.proposal.state, second.proposal.state) == ("Failed", "Done"), second.proposal.message
    finally:
        searches.close()
