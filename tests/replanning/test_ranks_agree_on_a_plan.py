"""Ranks take a plan together or not at all: the switchers of several ranks over their messages, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan.fits import PlanRefused
from rap_trainer.replan.switcher import Switcher
from rap_trainer.replan.watch import PlanWatch
from rap_trainer.step.agreement import Message, Messages, decide
from replanning.made_plans import made_plan
from train.small_jobs import small_job

WINDOWS = ("emb_fwd", "mlp_fwd", "grad_dist")


class FakeRuntime:
    """Only what a switch needs of a runtime; refuses the plans it is told to."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.refused: set[str] = set()
        self.fails: set[str] = set()
        self._next: Plan | None = None

    def prepare_plan(self, plan: Plan) -> None:
        if plan.hash in self.refused:
            raise PlanRefused("this rank has no memory for it")
        if plan.hash in self.fails:
            raise MemoryError("while it captures")
        self._next = plan

    def switch_plan(self) -> None:
        assert self._next is not None
        self.plan, self._next = self._next, None


class Rank:
    """A rank's switcher over a plan file of its own, as pods on different nodes have."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file, self.runtime, self.store = folder / "plan.json", FakeRuntime(), MetricStore(metrics.TRAINER)
        self.told: list[str] = []
        self.switcher = Switcher(self.runtime, self.store, tell=self.told.append)  # type: ignore[arg-type]  # a part of one
        self.watch = PlanWatch(self.file, prepare=self.switcher.prepare, in_force=None)
        self.switcher.watch(self.watch)

    def gets(self, text: str) -> None:
        """The kubelet brings a file, and the watch looks."""
        aside = self.file.with_suffix(".new")
        aside.write_text(text)
        aside.rename(self.file)
        self.watch.look()

    @property
    def hash(self) -> str | None:
        return None if self.runtime.plan is None else self.runtime.plan.hash

    def metric(self, metric: metrics.Metric) -> dict[tuple[str, ...], float]:
        return self.store.read(metric)


def step(ranks: Sequence[Rank]) -> None:
    """One step of the loop, as far as plans go."""
    offers = [rank.switcher.offer() for rank in ranks]
    messages = [Message(rows=1, ended=False, ready_plan=ready, refused_plan=refused) for ready, refused in offers]
    decision = decide(Messages.of(messages), room=True, shares=lambda ready, flush: None)
    for rank in ranks:
        rank.switcher.act(switch=decision.switch_plan, drop=decision.drop_plan)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> RAPJob:
    return small_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def plans(job: RAPJob) -> list[Plan]:
    return [made_plan(job, window) for window in WINDOWS]


@pytest.fixture
def ranks(tmp_path: Path) -> list[Rank]:
    return [Rank(tmp_path / f"rank-{number}") for number in range(3)]


def test_nobody_switches_before_all_are_ready_and_then_all_do(ranks: list[Rank], plans: list[Plan]) -> None:
    for rank in ranks[:2]:
        rank.gets(plans[0].to_json())
        step(ranks)
        assert [each.hash for each in ranks] == [None] * 3
    ranks[2].gets(plans[0].to_json())
    step(ranks)
    assert [each.hash for each in ranks] == [plans[0].hash] * 3
    for rank in ranks:
        assert rank.metric(metrics.PLAN_INFO) == {(plans[0].hash,): 1.0}
        assert rank.metric(metrics.PLAN_SWITCHES) == {("switched",): 1.0}
        parts = rank.metric(metrics.PREDICTED_STEP_SECONDS)
        assert sum(parts.values()) == pytest.approx(plans[0].prediction.step_seconds)
    step(ranks)
    assert ranks[0].metric(metrics.PLAN_SWITCHES) == {("switched",): 1.0}


@pytest.mark.parametrize("how", ["refused", "fails"])
def test_one_rank_that_cannot_prepare_keeps_all_on_the_old_plan(ranks: list[Rank], plans: list[Plan], how: str) -> None:
    getattr(ranks[1].runtime, how).add(plans[1].hash)
    for plan in plans[:2]:
        for rank in ranks:
            rank.gets(plan.to_json())
        for _ in range(3):
            step(ranks)
    assert [each.hash for each in ranks] == [plans[0].hash] * 3
    for rank in ranks:
        assert rank.metric(metrics.PLAN_SWITCHES)["vetoed",] == 1.0
        ((refused, reason),) = rank.metric(metrics.PLAN_REFUSED_INFO)
        assert refused == plans[1].hash
        assert reason
    for rank in ranks:
        rank.gets(plans[2].to_json())
    step(ranks)
    assert [each.hash for each in ranks] == [plans[2].hash] * 3


def test_a_rank_that_reads_a_vetoed_plan_late_does_not_take_it_either(ranks: list[Rank], plans: list[Plan]) -> None:
    ranks[0].runtime.refused.add(plans[0].hash)
    ranks[0].gets(plans[0].to_json())
    step(ranks)
    for rank in ranks[1:]:
        rank.gets(plans[0].to_json())
        step(ranks)
    assert [each.hash for each in ranks] == [None] * 3


def test_a_text_edited_by_hand_is_refused_and_named(ranks: list[Rank], plans: list[Plan]) -> None:
    edited = plans[0].to_json().replace('"window":"emb_fwd"', '"window":"mlp_bwd"')
    for text in (edited, "{", "", '{"version": 99}'):
        ranks[0].gets(text)
        step(ranks)
    assert ranks[0].hash is None
    assert len(ranks[0].told) == 3  # the empty file says nothing
    for rank in ranks:
        rank.gets(plans[0].to_json())
    step(ranks)
    assert [each.hash for each in ranks] == [plans[0].hash] * 3


def test_a_plan_is_prepared_again_if_the_file_changed_between_agreement_and_switch(
    ranks: list[Rank], plans: list[Plan]
) -> None:
    for rank in ranks:
        rank.gets(plans[0].to_json())
    offers = [rank.switcher.offer() for rank in ranks]
    assert len(set(offers)) == 1
    candidate = ranks[0].watch.candidate
    ranks[0].switcher.prepare(plans[1])  # the watch prepares the next file already
    ranks[0].watch.candidate = candidate
    for rank in ranks:
        rank.switcher.act(switch=offers[0][0], drop=0)
    assert [each.hash for each in ranks] == [plans[0].hash] * 3


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=14), bad=st.integers(0, 8))
def test_whatever_arrives_where_and_when_all_ranks_always_run_the_same(
    tmp_path_factory: pytest.TempPathFactory, plans: list[Plan], moves: list[tuple[int, int]], bad: int
) -> None:
    ranks = [Rank(tmp_path_factory.mktemp("any") / "rank") for _ in range(3)]
    ranks[bad % 3].runtime.refused.add(plans[bad // 3].hash)
    for who, which in moves:
        ranks[who].gets(plans[which].to_json())
        step(ranks)
        assert len({rank.hash for rank in ranks}) == 1
        assert all(rank.hash != plans[bad // 3].hash for rank in ranks)
