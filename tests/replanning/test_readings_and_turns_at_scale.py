"""Many jobs: their pages are read evenly over a round, those of jobs that switch more often, and places are handed out in turn."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from operator_world.world import NAMESPACE
from rap_operator.cache import Key
from rap_operator.replanning.jobs import JobRanks, Rank
from rap_operator.replanning.reader import BURST_S, MAX_LATE_BURSTS, MAX_READS_PER_S, SWITCHING_EVERY_S, TICK_S, Reader
from rap_operator.replanning.values import RankPage, Reading
from replanning.replan_world import BETTER, ReplanWorld
from servers.waiting import wait_until

INTERVAL_S = 30.0
NUM_JOBS = 2000


def job(number: int, *, is_switching: bool = False) -> JobRanks:
    rank = Rank(rank=0, url="http://nowhere/metrics", pod="p")
    return JobRanks(
        key=("n", f"job-{number}"),
        uid=str(number),
        namespace="n",
        attempt=1,
        num_ranks=1,
        ranks=(rank,),
        is_switching=is_switching,
    )


class Watched:
    """A source that counts, and a clock that is set."""

    def __init__(self, jobs: list[JobRanks], switching: list[JobRanks]) -> None:
        self.now_s, self.reads, self.told = 0.0, Counter[str](), Counter[str]()
        self.plan = "a"
        self.reader = Reader(
            lambda: jobs, self, lambda key: self._tell(key), switching=lambda: switching, clock=lambda: self.now_s
        )

    def read(self, job: JobRanks) -> Reading:
        self.reads[job.uid] += 1
        page = RankPage(rank=0, attempt=1, plan=self.plan)
        return Reading(at_s=self.now_s, pages=(page,), num_asked=1)

    def _tell(self, key: Key) -> None:
        self.told[key[1]] += 1

    def live(self, seconds: float) -> list[int]:
        """Turns of so long; gives the reads of each, once they are done."""
        made = []
        for _ in range(round(seconds / TICK_S)):
            before = self.reads.total()
            self.now_s += TICK_S
            self.reader.turn(INTERVAL_S, TICK_S)
            while self.reader._num_reading:
                pass
            made.append(self.reads.total() - before)
        return made


def test_a_round_of_many_jobs_is_spread_in_equal_bursts_and_reads_each_once() -> None:
    watched = Watched([job(number) for number in range(NUM_JOBS)], [])
    made = watched.live(INTERVAL_S + NUM_JOBS / MAX_READS_PER_S)
    assert max(made) <= MAX_READS_PER_S * BURST_S
    assert sum(map(bool, made)) <= NUM_JOBS / MAX_READS_PER_S / BURST_S + 1
    assert set(watched.reads.values()) == {1}
    assert len(watched.reads) == NUM_JOBS


def test_one_job_is_read_as_soon_as_its_turn_comes() -> None:
    watched = Watched([job(0)], [])
    made = watched.live(4 * INTERVAL_S)
    assert [number for number, reads in enumerate(made, start=1) if reads] == [
        round(turn * INTERVAL_S / TICK_S) for turn in (1, 2, 3, 4)
    ]


def test_a_job_that_does_not_answer_does_not_hold_the_others_up() -> None:
    watched = Watched([job(number) for number in range(20)], [])
    answer, read = threading.Event(), watched.read

    def hangs(job: JobRanks) -> Reading:
        assert job.uid != "0" or answer.wait(60)
        return read(job)

    watched.read = hangs  # type: ignore[method-assign]  # the first job of the round
    watched.now_s = INTERVAL_S
    for _ in range(2):
        watched.reader.turn(INTERVAL_S, TICK_S)
    wait_until(lambda: len(watched.reads) == 19, limit_s=60, what="the others to be read")
    answer.set()
    wait_until(lambda: len(watched.reads) == 20, limit_s=60, what="all to be read")


def test_turns_that_come_late_make_up_for_it_and_a_standstill_is_not_made_up_at_once() -> None:
    watched = Watched([job(number) for number in range(NUM_JOBS)], [])
    watched.live(INTERVAL_S)
    for late, most in ((1.2, 1.2), (100.0, MAX_LATE_BURSTS)):
        watched.now_s += late * BURST_S - TICK_S
        (made,) = watched.live(TICK_S)
        assert most * MAX_READS_PER_S * BURST_S <= made <= most * MAX_READS_PER_S * BURST_S + 1


def test_jobs_with_several_ranks_are_not_read_more_often_for_that() -> None:
    jobs = [replace(job(number), ranks=job(number).ranks * 4) for number in range(200)]
    watched = Watched(jobs, [])
    made = watched.live(INTERVAL_S + 40.0)
    ranks = 2  # of each: with all four a round would take 89 s
    assert sum(made) * ranks == pytest.approx(MAX_READS_PER_S * 40.0, abs=MAX_READS_PER_S * BURST_S)


def test_a_job_that_switches_is_read_and_told_of_while_the_round_goes_on() -> None:
    chosen = job(NUM_JOBS - 1, is_switching=True)
    watched = Watched([*(job(number) for number in range(NUM_JOBS - 1)), chosen], [chosen])
    watched.live(INTERVAL_S + 60.0)
    assert watched.reads[chosen.uid] >= (INTERVAL_S + 60.0) / SWITCHING_EVERY_S - 1
    assert watched.told["job-1999"] == watched.reads[chosen.uid]


def test_what_was_read_too_long_ago_to_decide_anything_is_not_kept() -> None:
    watched = Watched([replace(job(0), keep_s=200.0)], [])
    watched.live(1000.0)
    kept = watched.reader.readings_of("0")
    assert watched.now_s - kept[0].at_s <= 200.0 + INTERVAL_S
    assert len(kept) >= 200.0 // INTERVAL_S


def test_readings_of_a_long_window_lie_wider_apart_and_reach_as_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rap_operator.replanning.reader.MAX_READINGS", 40)
    keep_s = 100 * INTERVAL_S
    watched = Watched([replace(job(0), keep_s=keep_s)], [])
    watched.live(60 * INTERVAL_S)
    watched.plan = "b"
    watched.live(90 * INTERVAL_S)
    times = [reading.at_s for reading in watched.reader.readings_of("0")]
    assert len(times) <= 40
    assert times[-1] - times[0] > 0.9 * keep_s
    assert max(late - early for early, late in pairwise(times)) <= keep_s / 10
    assert max(late - early for early, late in pairwise(times[-10:])) == INTERVAL_S  # the newest tell the pace
    plans = [reading.plan for reading in watched.reader.readings_of("0")]
    assert times[plans.index("b") - 1] == 60 * INTERVAL_S  # the last one of the plan before


def test_another_plan_in_a_reading_is_told_at_once_and_the_same_one_is_not() -> None:
    watched = Watched([job(0)], [])
    watched.reader.tell_every_s = 1e6
    watched.live(4 * INTERVAL_S)
    assert watched.told == {"job-0": 1}
    watched.plan = "b"
    watched.live(2 * INTERVAL_S)
    assert watched.told == {"job-0": 2}


def test_places_are_handed_to_those_that_wait_the_longest_and_are_kept_for_them() -> None:
    world = ReplanWorld(max_switching=1)
    names = ["a", "b", "c"]
    subjects = {}
    for name in names:
        world.add(name)
    woken: list[Key] = []
    world.replanner._on_news = woken.append
    for view in world.controller.cache.rapjobs():
        _, observed = world.controller._observer.observe(view)
        subjects[view.meta.name] = observed.subject
    replanner = world.replanner
    assert replanner._has_room(subjects["a"])
    replanner._take(subjects["a"].uid)
    assert not replanner._has_room(subjects["b"])
    assert not replanner._has_room(subjects["c"])
    replanner.hand_out()
    assert woken == []
    world.monotonic_s += 31.0  # the place that "a" took and never used is free again
    replanner.hand_out()
    assert woken == [(NAMESPACE, "b")]
    assert not replanner._has_room(subjects["c"])
    assert replanner._has_room(subjects["b"])


def test_all_that_wait_have_their_turn_and_who_no_longer_wants_one_is_not_waited_for() -> None:
    world = ReplanWorld(max_switching=2)
    names = [f"job-{number}" for number in range(7)]
    for name in names:
        world.add(name)
    world.live(300)
    for trainer in world.trainers.values():
        trainer.length = 60.0
    world.live(120)
    assert world.replanner._waiting
    world.trainers["job-6"].length = 20.0
    world.live(1500, step_s=30.0)
    assert world.replanner._waiting == {}
    assert {world.trainers[name].plan for name in names[:6]} == {BETTER.hash}
    assert world.most_switching == 2
