"""When the launcher starts a group of ranks again, and which of their exit codes it ends with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rap_contract.operations import RestartPolicy, RestartRule
from rap_contract.pod import ExitCode
from rap_trainer.restarts import Action, Restarts, group_code

KILLED = 128 + 9


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        pytest.param([0, 0], 0, id="all done"),
        pytest.param([6, KILLED], KILLED, id="a killed rank, not the peer that lost it"),
        pytest.param([6, 3], 3, id="the rank that said why"),
        pytest.param([1, 6, 2], 2, id="a named reason before a crash"),
        pytest.param([143, 143], 143, id="asked to stop"),
        pytest.param([143, 6], 6, id="stopped while a peer was lost"),
    ],
)
def test_a_group_ends_with_the_code_that_says_most(codes: list[int], expected: int) -> None:
    assert group_code(codes) == expected


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 137, 143]), min_size=1, max_size=6))
def test_a_group_ends_with_the_code_of_one_of_its_ranks_and_with_0_only_if_all_did(codes: list[int]) -> None:
    assert group_code(codes) in codes
    assert (group_code(codes) == 0) == (set(codes) == {0})


def test_a_lost_peer_restarts_with_doubling_delays_until_the_budget_is_spent() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=3, delay_seconds=10, max_delay_seconds=25), managed=False)
    verdicts = [restarts.after(ExitCode.PEER_LOST, healthy_s=1.0, stopping=False) for _ in range(4)]
    assert [v.delay_s for v in verdicts[:3]] == [10.0, 20.0, 25.0]
    assert verdicts[3].action is Action.END


def test_healthy_time_gives_the_budget_back() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=1, reset_after_seconds=60), managed=False)
    for _ in range(5):
        assert restarts.after(KILLED, healthy_s=61.0, stopping=False).action is Action.RESTART


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 143, 130])
def test_what_a_restart_cannot_mend_ends_the_run(code: int) -> None:
    restarts = Restarts(RestartPolicy(), managed=False)
    assert restarts.after(code, healthy_s=1.0, stopping=False).action is Action.END


def test_rules_come_before_the_defaults_and_the_first_match_decides() -> None:
    rules = [RestartRule(exit_codes=[5], action="Ignore"), RestartRule(exit_codes=[KILLED], action="Fail")]
    restarts = Restarts(RestartPolicy(max_restarts=0, rules=rules), managed=False)
    assert restarts.after(5, healthy_s=1.0, stopping=False).action is Action.RESTART
    assert restarts.after(KILLED, healthy_s=1.0, stopping=False).action is Action.END


@pytest.mark.parametrize(("managed", "stopping"), [(True, False), (False, True)], ids=["in a pod", "asked to stop"])
def test_nothing_restarts_where_another_decides_or_the_user_stopped_it(managed: bool, stopping: bool) -> None:
    restarts = Restarts(RestartPolicy(), managed=managed)
    assert restarts.after(KILLED, healthy_s=1.0, stopping=stopping).action is Action.END
