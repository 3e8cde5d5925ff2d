"""A running job's profile: corrected by its own steps, measured again when they drift, told as capacity of the windows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rap_contract import metrics
from rap_contract.operations import Replanning
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile
from rap_contract.windows import PLACES
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan.comparison import PREPROCESSING, STEP, TRAINING
from rap_trainer.replan.planning_page import PlanningPage
from rap_trainer.replan.profile_in_force import ProfileInForce
from rap_trainer.replan.remeasuring import MAX_SHARE, Remeasuring
from rap_trainer.step.agreement import Message, Messages, decide
from replanning.cpu_profile import cpu_profile
from train.small_jobs import small_job

STEP_S = 0.010


class Job:
    """A job with a profile of its own beside its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.job = small_job(folder)
        self.path = folder / "checkpoints" / "profile.json"
        self.path.parent.mkdir()
        profile = cpu_profile(self.job, beside_s=1e-5, step_s=STEP_S, seconds_per_byte=1e-8)
        self.path.write_text(profile.to_json())
        self.store = MetricStore(metrics.TRAINER)
        self.profile = ProfileInForce(self.job, {}, self.store)

    def measured_over_predicted(self, **ratios: float) -> None:
        for part, ratio in ratios.items():
            self.store.set(metrics.PLAN_ERROR_RATIO, ratio, part=part)

    def capacity(self) -> dict[str, float]:
        return {labels[0]: value for labels, value in self.store.read(metrics.WINDOW_CAPACITY_SECONDS).items()}

    def remeasuring(self, measure: Callable[[Profile], Profile] | None, *, rank: int = 0, **policy: Any) -> Remeasuring:
        world = SimpleNamespace(rank=rank, size=1)
        return Remeasuring(Replanning(**policy), self.store, self.profile, measure=measure, world=world)  # type: ignore[arg-type]  # a part of one


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def slower(profile: Profile) -> Profile:
    """As a neighbour leaves it: half of the probes' lengths hide, the step takes twice as long."""
    windows = tuple(
        window.model_copy(
            update={
                "responses": tuple(
                    each.model_copy(update={"solo_seconds": each.solo_seconds / 2}) for each in window.responses
                )
            }
        )
        for window in profile.windows
    )
    return profile.model_copy(update={"step_seconds": 2 * profile.step_seconds, "windows": windows})


def test_the_windows_of_the_jobs_own_profile_are_metrics_and_no_others(job: Job, tmp_path: Path) -> None:
    job.profile.show()
    assert set(job.capacity()) == set(PLACES)
    assert job.capacity()["mlp_bwd"] == pytest.approx(10e-5)
    assert job.capacity()["emb_fwd"] == 0.0
    store = MetricStore(metrics.TRAINER)
    job.path.unlink()
    ProfileInForce(job.job, {}, store).show()
    assert store.read(metrics.WINDOW_CAPACITY_SECONDS) == {}


def test_steps_that_take_longer_than_predicted_correct_the_profile_that_is_planned_from(job: Job) -> None:
    assert job.profile.corrected() == (job.profile.read(), False)
    job.measured_over_predicted(**{STEP: 1.5, TRAINING: 1.2, PREPROCESSING: 3.0})
    corrected, is_corrected = job.profile.corrected()
    assert is_corrected
    assert corrected.step_seconds == pytest.approx(1.2 * STEP_S)
    before, after = (each.coefficients.stages["program"] for each in (job.profile.read(), corrected))
    assert after.seconds_per_byte == pytest.approx(3 * before.seconds_per_byte)
    page = json.loads(PlanningPage(job.job, job.store, SimpleNamespace(plan=None), profile=job.profile)())
    assert page["corrected"] is True
    assert page["profile"]["stepSeconds"] == pytest.approx(1.2 * STEP_S)


def test_a_step_that_is_one_graph_corrects_training_and_kernels_alike(job: Job) -> None:
    job.measured_over_predicted(**{STEP: 1.5})
    corrected, _ = job.profile.corrected()
    assert corrected.step_seconds == pytest.approx(1.5 * STEP_S)


def test_what_all_preprocessing_takes_inline_grows_with_the_lists_of_today(job: Job) -> None:
    page = PlanningPage(job.job, job.store, SimpleNamespace(plan=None), profile=job.profile)
    job.store.set(metrics.MEAN_LIST_LENGTH, 3.0, group="cat_{0..2}")
    short_s = page.inline_seconds(job.profile.read())
    job.store.set(metrics.MEAN_LIST_LENGTH, 60.0, group="cat_{0..2}")
    assert page.inline_seconds(job.profile.read()) > short_s > 0


def test_drift_of_the_step_measures_the_windows_again_for_this_attempt_and_the_next(job: Job) -> None:
    remeasuring = job.remeasuring(slower, min_interval_seconds=600, window_seconds=10)
    job.measured_over_predicted(**{STEP: 1.1})
    assert not remeasuring.is_due(0.0), "the plan's error when it was taken is no drift"
    job.measured_over_predicted(**{STEP: 1.2})
    assert not remeasuring.is_due(10.0)
    assert not remeasuring.is_due(20.0)
    job.measured_over_predicted(**{STEP: 2.2})
    assert not remeasuring.is_due(30.0), "it may go on drifting"
    assert not remeasuring.is_due(39.0), "a window later it is known"
    assert remeasuring.is_due(40.0)
    job.profile.show()
    before = job.capacity()["mlp_bwd"]
    remeasuring.act(40.0)
    assert job.capacity()["mlp_bwd"] == pytest.approx(before / 2)
    assert Profile.from_json(job.path.read_text()).step_seconds == pytest.approx(2.2 * STEP_S), "as the real steps are"
    assert not any(remeasuring.is_due(at_s) for at_s in (1e4, 2e4)), "it is what the windows were measured under"
    corrected, _ = job.profile.corrected()
    assert corrected.step_seconds == pytest.approx(2.2 * STEP_S), "what was measured again is not corrected twice"
    job.measured_over_predicted(**{STEP: 4.4})
    assert job.profile.corrected()[0].step_seconds == pytest.approx(4.4 * STEP_S)


def test_lists_that_have_become_others_measure_the_windows_again_once(job: Job) -> None:
    remeasuring = job.remeasuring(slower, min_interval_seconds=600, window_seconds=10)

    def is_due(at_s: float, length: float) -> bool:
        job.store.set(metrics.MEAN_LIST_LENGTH, length, group="cats")
        return remeasuring.is_due(at_s)

    assert not is_due(0.0, 20.0)
    assert not any(is_due(10.0 * number, 29.0) for number in (1, 2, 3)), "the cost model knows what that takes"
    assert not any(is_due(10.0 * number, 10.0 * number) for number in (4, 5, 6)), "lists that still grow"
    assert is_due(70.0, 61.0)
    remeasuring.act(70.0)
    assert not any(is_due(at_s, 61.0) for at_s in (1e11, 1e12)), "it is what the windows were measured with"


def test_what_was_not_known_at_the_first_look_counts_from_when_it_is_known(job: Job) -> None:
    """A run asks before each step, the first one included."""
    remeasuring = job.remeasuring(slower, window_seconds=10)
    assert not remeasuring.is_due(0.0)
    job.measured_over_predicted(**{STEP: 1.2})
    job.store.set(metrics.MEAN_LIST_LENGTH, 20.0, group="cats")
    assert not any(remeasuring.is_due(10.0 * number) for number in (1, 2))
    job.measured_over_predicted(**{STEP: 2.2})
    assert not remeasuring.is_due(30.0)
    assert remeasuring.is_due(40.0)


def test_measuring_takes_no_more_than_its_share_of_training(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = iter([0.0, 4.0, 4.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock_s))
    remeasuring = job.remeasuring(slower, min_interval_seconds=60, window_seconds=10)
    job.store.set(metrics.MEAN_LIST_LENGTH, 20.0, group="cats")
    assert not remeasuring.is_due(90.0)
    remeasuring.act(100.0)
    again_s = 104.0 + 4.0 / MAX_SHARE
    job.store.set(metrics.MEAN_LIST_LENGTH, 60.0, group="cats")
    assert not any(remeasuring.is_due(again_s - left_s) for left_s in (20.0, 1.0))
    assert not remeasuring.is_due(again_s)
    assert remeasuring.is_due(again_s + 10.0)


def test_the_windows_are_measured_again_only_where_that_is_asked_for_and_possible(job: Job) -> None:
    quiet = [
        job.remeasuring(None),
        job.remeasuring(slower, rank=1),
        job.remeasuring(slower, mode="Off"),
        job.remeasuring(slower, triggers={"prediction_ratio": 0}),
    ]
    for at_s, ratio in ((0.0, 1.0), (1e3, 3.0), (2e3, 3.0)):
        job.measured_over_predicted(**{STEP: ratio})
        assert not any(each.is_due(at_s) for each in quiet)


def test_a_profile_that_was_broken_meanwhile_is_not_measured_over(job: Job) -> None:
    remeasuring = job.remeasuring(lambda profile: pytest.fail("measured"))
    job.path.write_text("{}")
    remeasuring.act(0.0)
    assert job.path.read_text() == "{}"


@pytest.mark.parametrize(
    "lack", [MemoryError("100 MiB are free on some rank"), InvalidDocument(())], ids=["memory", "document"]
)
def test_where_measuring_fails_the_profile_stays_and_training_goes_on(job: Job, lack: Exception) -> None:
    def lacking(profile: Profile) -> Profile:
        raise lack

    before = job.path.read_text()
    job.remeasuring(lacking).act(0.0)
    assert job.path.read_text() == before
    assert job.profile.read().to_json() == Profile.from_json(before).to_json()


def test_the_first_ranks_word_alone_makes_all_ranks_measure() -> None:
    def all_of(*flags: bool) -> bool:
        messages = [Message(rows=1, ended=False, measure=flag) for flag in flags]
        return decide(Messages.of(messages), room=True, shares=lambda ready, flush: (1,)).measure

    assert all_of(True, False)
    assert not all_of(False, True)


def test_a_step_measured_with_the_jobs_own_launches_is_taken_as_it_is(job: Job) -> None:
    """The steps lately were longer by what their plan no longer hides, which is in the windows."""

    def measure(profile: Profile) -> Profile:
        windows = tuple(
            window.model_copy(
                update={"responses": tuple(each.model_copy(update={"num_bytes": 0}) for each in responses)}
            )
            for window in profile.windows
            for responses in (window.responses,)
        )
        return profile.model_copy(update={"windows": windows, "step_seconds": 0.9 * STEP_S})

    job.measured_over_predicted(**{STEP: 1.5})
    job.remeasuring(measure).act(0.0)
    assert job.profile.read().step_seconds == pytest.approx(0.9 * STEP_S)
    assert job.profile.corrected()[0].step_seconds == pytest.approx(0.9 * STEP_S)
