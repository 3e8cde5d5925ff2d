"""The loop: a name from the queue, what is known of it, a decision, its application.

Level-triggered: why a name was queued is never asked. Nothing in memory matters to the outcome.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rap_operator import naming
from rap_operator.api import Api, ApiError, ApiUnavailable
from rap_operator.apply import Applier, Foreign, NotGone
from rap_operator.cache import Cache, Key
from rap_operator.decide import decide
from rap_operator.events import EventSink
from rap_operator.logs import job_context
from rap_operator.notice import Notice
from rap_operator.observe import Observer
from rap_operator.observed import Judged, Observed, Subject, Telemetry
from rap_operator.policy import Limits
from rap_operator.replanning.replanner import Replanner
from rap_operator.resources import RAPJOBS, WATCHED
from rap_operator.watch import Reflector, Timing
from rap_operator.workqueue import WorkQueue

LOG = logging.getLogger(__name__)
NOT_GONE_RETRY_S = 1.0
REFUSED_RETRY_S = 30.0
JOBS_FIRST_S = (
    2.0  # lists of children wait for the list of RAPJobs, which takes 0.3 s for 1,000, and for no longer than this
)
RESYNC_JITTER = 0.1  # share of a wait, so that a thousand jobs do not wake at once


class Controller:
    """Everything between the API and the decisions, for a set of namespaces (none: all)."""

    def __init__(
        self,
        api: Api,
        *,
        namespaces: Sequence[str] = (),
        limits: Limits | None = None,
        timing: Timing | None = None,
        telemetry_of: Callable[[Subject], Telemetry | None] = lambda subject: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()
        self.cache = Cache(self._changed)
        self.stopping = threading.Event()
        self.observe_pass: Callable[[str, float], None] = lambda outcome, seconds: None
        self.observe_restart: Callable[[str], None] = lambda reason: None
        self._limits, self._wall_clock = limits or Limits(), wall_clock
        self._events = EventSink(api, wall_clock=wall_clock)
        self._observer = Observer(api, self.cache, telemetry_of)
        self._applier = Applier(api, self.cache, self._events)
        self.reflectors = [
            Reflector(api, self.cache, resource, namespace, stopping=self.stopping, timing=timing)
            for resource in WATCHED
            for namespace in (namespaces or (None,))
        ]
        self._api = api
        self._replanner: Replanner | None = None
        self.is_standby = False
        """It watches and does nothing: another leads."""
        self._threads: list[threading.Thread] = []

    def replan_with(self, replanner: Replanner) -> None:
        """Lets a replanner see every pass and carry its decisions out; it starts with the workers."""
        self._observer.replan_of = replanner.seen
        self._applier.replan = lambda subject, action: replanner.act(self._api, subject, action)
        self._replanner = replanner

    def watch(self) -> None:
        """Starts the watches: the cache is kept up to date and nothing is done, so that whoever comes to lead can begin."""
        self.is_standby = True
        for reflector in self.reflectors:
            follow = reflector.run if reflector.resource is RAPJOBS else partial(self._follow_after_jobs, reflector)
            self._spawn(follow, f"watch-{reflector.resource.plural}")

    def work(self, *, workers: int = 4) -> None:
        """Starts the workers: the first at once, the others when every watch has its list."""
        self.is_standby = False
        for known in self.cache.rapjobs():
            self._changed((known.meta.namespace, known.meta.name))
        for number in range(workers):
            self._spawn(self._work if number else self._work_from_the_start, f"worker-{number}")
        if self._replanner is not None:
            self._replanner.start(self.stopping)

    def start(self, *, workers: int = 4) -> None:
        """Starts watches and workers."""
        self.watch()
        self.work(workers=workers)

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stops the workers after their current pass; watches end with the process."""
        self.stopping.set()
        self.queue.close()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.name.startswith("worker"):
                thread.join(max(deadline_s - time.monotonic(), 0.0))

    @property
    def is_synced(self) -> bool:
        return all(reflector.is_synced.is_set() for reflector in self.reflectors)

    def reconcile(self, key: Key) -> float | None:
        """One pass for one job; returns the seconds after which to look again, None for never."""
        view = self.cache.rapjob(key)
        if view is None:
            return None
        judged, observed = self._observer.observe(view)
        try:
            return self._decided(judged, observed)
        except NotGone as waiting:
            LOG.info("%s", waiting)
            return NOT_GONE_RETRY_S
        except (ApiError, Foreign) as error:
            if not _is_refusal(error):
                raise
            try:
                again_s = self._without_new_spec(judged, observed, error)
            except (ApiError, Foreign):
                again_s = None
            if again_s is None:
                self._tell(observed.subject, error)
                raise
            return again_s

    def _without_new_spec(self, judged: Judged, observed: Observed, error: Exception) -> float | None:
        """A new spec that cannot be stored must not stop the rest: the one before goes on being enforced."""
        enforced = observed.status.revision.enforced
        if not enforced or judged.revision in ("", enforced):
            return None
        refused = Judged(problems=(f"spec: it cannot be stored: {error}",))
        again_s = self._decided(refused, observed)
        return REFUSED_RETRY_S if again_s is None else min(again_s, REFUSED_RETRY_S)

    def _decided(self, judged: Judged, observed: Observed) -> float | None:
        decision = decide(judged, observed, self._wall_clock(), self._limits)
        self._applier.apply(decision, judged, observed)
        before, after = observed.status.restarts.total, decision.status
        if after.restarts.total > before and after.attempt is not None:
            self.observe_restart(after.attempt.cause)
        return decision.requeue_s

    def work_once(self, timeout_s: float | None = None) -> bool:
        """Takes one name and makes its pass; False when none came in time."""
        key = self.queue.get(timeout_s)
        if key is None:
            return False
        with job_context("/".join(key), self._attempt_of(key)):
            self._work_on(key)
        return True

    def _work_on(self, key: Key) -> None:
        begun_s, outcome = time.monotonic(), "done"
        try:
            if not self.is_synced:
                self._read_children(key)
            again_s = self.reconcile(key)
            self.queue.forget(key)
            if again_s is not None:
                jitter = (hash(key) % 1000) / 1000 * RESYNC_JITTER
                # Everything that may be due was looked at: what an earlier pass waited for no longer counts.
                self.queue.add_after(key, again_s * (1 + jitter) if again_s > 60 else again_s, replaces=True)
        except ApiError as error:
            outcome = "conflict" if error.is_conflict else "refused"
            delay_s = self.queue.add_failed(key, at_least_s=error.retry_after_s or 0.0)
            level = logging.DEBUG if error.is_conflict else logging.WARNING
            LOG.log(level, "%s/%s: %s; again in %.1f s", *key, error, delay_s)
        except (ApiUnavailable, Foreign) as error:
            outcome = "unavailable"
            LOG.warning("%s/%s: %s; again in %.1f s", *key, error, self.queue.add_failed(key))
        except Exception:
            outcome = "error"
            LOG.exception("%s/%s; again in %.1f s", *key, self.queue.add_failed(key))
        finally:
            self.queue.done(key)
            self.observe_pass(outcome, time.monotonic() - begun_s)

    def _changed(self, key: Key) -> None:
        """The pass that judges a new job, or a spec that a user has changed, goes before the pods of a thousand others."""
        if self.is_standby:
            return
        view = self.cache.rapjob(key)
        self.queue.add(key, goes_first=view is not None and is_unjudged(view.item))

    def _attempt_of(self, key: Key) -> int:
        view = self.cache.rapjob(key)
        attempt = ((view.item.get("status") or {}) if view else {}).get("attempt") or {}
        return int(attempt.get("number", 0))

    def _read_children(self, key: Key) -> None:
        """Makes one job's children known before the lists of all jobs' are in.

        The lists of a thousand jobs take seconds, those of one job milliseconds; a pass over a job of which a part is
        not known yet would start what is there already.
        """
        view = self.cache.rapjob(key)
        if view is None:
            return
        query = {"labelSelector": naming.pod_selector(view.meta.uid)}
        for resource in WATCHED:
            if resource is not RAPJOBS:
                for item in self._api.list(resource, key[0], query=query).get("items") or ():
                    self.cache.put(resource, item, is_news=False)

    def _follow_after_jobs(self, reflector: Reflector) -> None:
        """Pods are 20 times as many bytes as the jobs that the first passes need."""
        until_s = time.monotonic() + JOBS_FIRST_S
        for jobs in self.reflectors:
            if jobs.resource is RAPJOBS:
                jobs.is_synced.wait(max(until_s - time.monotonic(), 0.0))
        reflector.run()

    def _work_from_the_start(self) -> None:
        while not self.is_synced and not self.stopping.is_set():
            self.work_once(timeout_s=0.1)
        self._work()

    def _work(self) -> None:
        for reflector in self.reflectors:
            while not reflector.is_synced.wait(1.0):
                if self.stopping.is_set():
                    return
        while not self.stopping.is_set():
            self.work_once(timeout_s=1.0)

    def _tell(self, subject: Subject, error: Exception) -> None:
        """What the server will not have is the user's to know: a quota, a webhook, a wrong podTemplate."""
        self._applier.say_refused(subject, str(error), now_s=self._wall_clock())
        self._events.tell(subject, Notice(reason="Refused", message=str(error), level="Warning"))

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def is_unjudged(item: Mapping[str, Any]) -> bool:
    """Whether nothing was said yet about the spec that a RAPJob has now."""
    generation: int = item["metadata"].get("generation", 0)
    return bool((item.get("status") or {}).get("observedGeneration") != generation)


def _is_refusal(error: ApiError | Foreign) -> bool:
    return isinstance(error, Foreign) or error.status in (400, 403, 413, 422)
