"""What the operator makes of the trainers' metrics: numbers when they are there, nothing when they are not."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from operator_world.world import KEY, NAMESPACE
from rap_contract import metrics
from rap_operator.cache import Key
from rap_operator.observed import Subject, Telemetry
from rap_operator.pages import MAX_BYTES
from rap_operator.scrape import Scraper, Target, parse

UID = "uid-1"
SUBJECT = Subject(namespace=NAMESPACE, name="clicks", uid=UID)


def page(step: float = 10, attempt: int = 1, extra: str = "") -> str:
    return f"""# HELP {metrics.STEP.name} Optimizer steps.
# TYPE {metrics.STEP.name} gauge
{metrics.STEP.name} {step}
{metrics.ATTEMPT.name} {attempt}
{metrics.ROWS_PER_SECOND.name} 1.5e+05
{metrics.EXPOSED_RATIO.name} 0.031
{metrics.CHECKPOINT_TIME_SECONDS.name} 1000.0
{metrics.PENDING_RECORDS.name}{{topic="t",partition="0"}} 40.0
{metrics.PENDING_RECORDS.name}{{topic="t",partition="1"}} 2.0
{metrics.PLAN_INFO.name}{{plan="old"}} 0.0
{metrics.PLAN_INFO.name}{{plan="abc123"}} 1.0
{metrics.FRESHNESS_SECONDS.name}_bucket{{le="1.0"}} 0.0
{metrics.FRESHNESS_SECONDS.name}_bucket{{le="2.0"}} 10.0
{metrics.FRESHNESS_SECONDS.name}_bucket{{le="+Inf"}} 10.0
{extra}"""


class Trainers:
    """Pages by URL and a clock, with a scraper over them."""

    def __init__(self) -> None:
        self.now_s = 5000.0
        self.answer: str | Exception = page()
        self.target = Target(key=KEY, uid=UID, attempt=1, url="http://pod/metrics")
        self.is_running = True
        self.news: list[Key] = []
        self.outcomes: list[str] = []
        self.scraper = Scraper(
            lambda: [self.target] if self.is_running else [],
            self.news.append,
            fetch=self.fetch,
            clock=lambda: self.now_s,
        )
        self.scraper.count = self.outcomes.append

    def fetch(self, url: str) -> str:
        assert url == "http://pod/metrics"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def scraped(self, answer: str | Exception | None = None, *, after_s: float = 30) -> Telemetry | None:
        if answer is not None:
            self.answer = answer
        self.now_s += after_s
        self.scraper.scrape_some()
        return self.scraper.telemetry_of(SUBJECT)


def test_the_numbers_of_a_page_are_read() -> None:
    found = Trainers().scraped()
    assert found is not None
    assert (found.step, found.samples_per_second, found.lag_records) == (10, 150_000, 42)
    assert found.exposed_percent == pytest.approx(3.1)
    assert found.freshness_s == pytest.approx(1.5)
    assert (found.checkpoint_at_s, found.plan_hash) == (1000, "abc123")


def test_freshness_is_of_the_rows_since_the_last_scrape_and_not_of_a_backlog_long_trained() -> None:
    def old_and_new(old: float, new: float, step: float) -> str:
        name = f"{metrics.FRESHNESS_SECONDS.name}_bucket"
        buckets = {"1.0": new, "60.0": new, "3600.0": old + new, "+Inf": old + new}
        lines = "".join(f'{name}{{le="{bound}"}} {count}\n' for bound, count in buckets.items())
        return f"{metrics.STEP.name} {step}\n{metrics.ATTEMPT.name} 1\n{lines}"

    trainers = Trainers()
    found = [
        trainers.scraped(old_and_new(*numbers))
        for numbers in ((1000, 0, 1), (1000, 10, 2), (1000, 10, 2), (0, 5, 3), (0, 5, 4))
    ]
    fresh_s = [each.freshness_s for each in found if each is not None]
    assert fresh_s == [
        pytest.approx(1830.0),
        *[pytest.approx(0.5)] * 4,
    ]  # no row is no news; counters that fell begin anew


def test_progress_is_when_the_step_last_advanced() -> None:
    trainers = Trainers()
    first = trainers.scraped()
    second = trainers.scraped(page(step=11))
    third = trainers.scraped(page(step=11))
    assert first is not None
    assert second is not None
    assert third is not None
    assert not first.has_advanced
    assert second.has_advanced
    assert second.progress_at_s == third.progress_at_s == 5060
    assert third.seen_at_s == 5090


@pytest.mark.parametrize(
    "answer",
    [OSError("refused"), ValueError("status 500"), "", "garbage {{{", page(step=float("nan")), page(attempt=9)],
    ids=["refused", "status", "empty", "garbage", "nan", "another attempt's"],
)
def test_a_page_that_cannot_be_used_says_nothing_new(answer: str | Exception) -> None:
    trainers = Trainers()
    assert trainers.scraped(answer) is None
    before = trainers.scraped(page())
    after = trainers.scraped(answer)
    assert before is not None
    assert after is not None
    assert (after.step, after.seen_at_s) == (before.step, before.seen_at_s)


@pytest.mark.parametrize("labels", ["", '{le=""}', '{le="many"}', '{bound="1.0"}'])
def test_a_bucket_without_a_bound_says_nothing_new_and_the_next_page_counts(labels: str) -> None:
    trainers = Trainers()
    before = trainers.scraped()
    after = trainers.scraped(page(step=11, extra=f"{metrics.FRESHNESS_SECONDS.name}_bucket{labels} 3"))
    assert before is not None
    assert after is not None
    assert (after.step, trainers.outcomes[-1]) == (before.step, "stale")
    found = trainers.scraped(page(step=12))
    assert found is not None
    assert found.step == 12


def test_a_round_that_fails_is_not_the_last() -> None:
    trainers, stopping = Trainers(), threading.Event()
    rounds = 0

    def targets() -> list[Target]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise RuntimeError("a fault of ours")
        stopping.set()
        return [trainers.target]

    Scraper(targets, trainers.news.append, fetch=trainers.fetch).run(stopping, interval_s=0.0)
    assert rounds == 2


def test_no_step_is_known_as_of_the_last_answer_or_of_the_last_question_but_one() -> None:
    trainers = Trainers()
    trainers.scraped()
    answered = trainers.scraped(page(step=11), after_s=300)
    assert answered is not None
    assert answered.asked_at_s == answered.progress_at_s == trainers.now_s  # however long the time before was
    once = trainers.scraped(OSError("refused"), after_s=300)
    twice = trainers.scraped(after_s=300)
    assert once is not None
    assert twice is not None
    assert once.asked_at_s == answered.asked_at_s
    assert twice.asked_at_s == trainers.now_s - 300
    again = trainers.scraped(page(step=11), after_s=300)
    assert again is not None
    assert (again.asked_at_s, again.unanswered_at_s) == (trainers.now_s, None)


def test_with_many_jobs_each_is_asked_in_its_turn_and_new_attempts_at_once() -> None:
    trainers = Trainers()
    targets = [replace(trainers.target, uid=f"uid-{i}", url=f"http://{i}/metrics") for i in range(300)]
    asked: list[str] = []
    steps = dict.fromkeys((target.url for target in targets), 0)

    def fetch(url: str) -> str:
        asked.append(url)
        steps[url] += 1
        return page(step=steps[url])

    scraper = Scraper(lambda: targets, trainers.news.append, fetch=fetch, clock=lambda: trainers.now_s)

    def scraped() -> set[str]:
        asked.clear()
        trainers.now_s += 30
        scraper.scrape_some(30.0)
        return set(asked)

    everyone = set(steps)
    assert scraped() == scraped() == everyone  # twice: so each was seen to advance
    rounds = [scraped() for _ in range(5)]
    assert [len(found) for found in rounds] == [120] * 5
    assert rounds[0] | rounds[1] | rounds[2] == rounds[2] | rounds[3] | rounds[4] == everyone
    targets[7] = replace(targets[7], attempt=2)  # its page still tells of attempt 1
    assert all(targets[7].url in scraped() for _ in range(5))


def test_a_new_attempt_starts_its_own_story() -> None:
    trainers = Trainers()
    trainers.scraped()
    trainers.scraped(page(step=11))
    trainers.target = Target(key=KEY, uid=UID, attempt=2, url="http://pod/metrics")
    found = trainers.scraped(page(step=11, attempt=2))
    assert found is not None
    assert (found.attempt, found.has_advanced, found.progress_at_s) == (2, False, trainers.now_s)


def test_a_job_that_no_longer_runs_is_forgotten() -> None:
    trainers = Trainers()
    trainers.scraped()
    trainers.is_running = False
    assert trainers.scraped() is None


def test_summaries_in_status_are_rationed_over_all_jobs() -> None:
    trainers = Trainers()
    targets = [Target(key=(NAMESPACE, f"j{i}"), uid=f"u{i}", attempt=1, url="http://pod/metrics") for i in range(200)]
    trainers.scraper._targets = lambda: targets
    reports = 0
    for _ in range(4):
        trainers.now_s += 30
        trainers.scraper.scrape_some()
        for target in targets:
            found = trainers.scraper.telemetry_of(Subject(namespace=NAMESPACE, name="x", uid=target.uid))
            assert found is not None
            reports += found.may_report
    assert 20 <= reports <= 40  # 120 s at a report in five seconds, and what was saved


def test_an_attempt_that_has_no_rate_yet_does_not_take_the_last_ones_away() -> None:
    trainers = Trainers()
    first = trainers.scraped()
    trainers.target = replace(trainers.target, attempt=2)
    young = "".join(line for line in page(attempt=2).splitlines(True) if metrics.ROWS_PER_SECOND.name not in line)
    found = [first, trainers.scraped(young), trainers.scraped(page(step=11, attempt=2))]
    assert [(each.step, each.may_report) for each in found if each is not None] == [(10, True), (10, False), (11, True)]


def test_another_plan_in_force_is_news_at_once() -> None:
    trainers = Trainers()
    trainers.scraped(after_s=60)
    trainers.scraped(page(step=11), after_s=1)
    trainers.news.clear()
    trainers.scraped(page(step=12), after_s=1)
    assert trainers.news == []
    found = trainers.scraped(page(step=12).replace("abc123", "def456"), after_s=1)
    assert found is not None
    assert (found.plan_hash, trainers.news) == ("def456", [KEY])


def test_a_page_read_for_another_purpose_is_taken_in_place_of_a_scrape() -> None:
    trainers = Trainers()
    for step in (10, 11):
        trainers.scraped(page(step=step))
    num_asked = len(trainers.outcomes)
    trainers.now_s += 30
    trainers.scraper.offer(UID, 1, page(step=12))
    found = trainers.scraped(OSError("nobody should have asked"), after_s=1)
    assert found is not None
    assert (found.step, found.seen_at_s) == (12, trainers.now_s - 1)
    assert trainers.outcomes[num_asked:] == ["done"]
    again = trainers.scraped(page(step=13), after_s=120)  # nobody offers any more
    assert again is not None
    assert again.step == 13


def test_of_pages_that_are_offered_often_some_are_taken() -> None:
    trainers = Trainers()
    for step in (10, 11):
        trainers.scraped(page(step=step))
    num_asked = len(trainers.outcomes)
    for step in range(12, 72):
        trainers.now_s += 1
        trainers.scraper.offer(UID, 1, page(step=step))
    assert len(trainers.outcomes) - num_asked == 60 // 15


def test_a_page_of_another_attempt_or_of_a_job_that_is_not_running_is_not_taken() -> None:
    trainers = Trainers()
    trainers.scraped()
    trainers.scraper.offer(UID, 2, page(step=99, attempt=2))
    trainers.scraper.offer("uid-2", 1, page(step=99))
    found = trainers.scraper.telemetry_of(SUBJECT)
    assert found is not None
    assert found.step == 10


def test_an_attempt_without_a_step_yet_is_asked_whatever_others_read() -> None:
    trainers = Trainers()
    trainers.scraped()
    trainers.scraper.offer(UID, 1, page())
    found = trainers.scraped(page(step=11), after_s=1)
    assert found is not None
    assert found.has_advanced


def test_the_first_step_of_an_attempt_is_news_at_once() -> None:
    trainers = Trainers()
    still = f"{metrics.ROWS_PER_SECOND.name} 0.0"
    for step, news in ((10, 0), (10, 0), (11, 1), (12, 1)):  # nothing to report: no row was trained yet
        text = page(step=step).replace(f"{metrics.ROWS_PER_SECOND.name} 1.5e+05", still)
        trainers.scraped(text, after_s=15)
        assert len(trainers.news) == news


def test_only_the_lines_that_matter_are_kept() -> None:
    noise = "\n".join(f'some_metric{{i="{i}"}} {i}' for i in range(10_000))
    values = parse(page(extra=noise))
    assert "some_metric" not in values.samples
    assert len(noise) < MAX_BYTES
