"""Replanning's hands: readings, searches, the ConfigMap, and the cluster's limit of jobs that switch at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from rap_operator import naming
from rap_operator.api import Api
from rap_operator.apply import NotGone
from rap_operator.cache import Cache, Key
from rap_operator.decision import Replan
from rap_operator.observed import Subject
from rap_operator.pages import Fetch
from rap_operator.replanning import plan_config
from rap_operator.replanning.jobs import JobRanks, is_switching, ranks_of, replannable, switching
from rap_operator.replanning.reader import Reader
from rap_operator.replanning.searches import Limits, Searches
from rap_operator.replanning.sources import Source
from rap_operator.replanning.values import Ask, Forget, Proposal, PutInForce, Seen, Store, Take
from rap_operator.resources import CONFIG_MAPS

LOG = logging.getLogger(__name__)
GRANT_S = 30.0  # a place that was taken and never shows in a status is free again
HAND_OUT_S = 1.0
"""How often places that became free are given to the jobs that wait for one."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Set at the operator's start."""

    max_switching: int = 10
    """Jobs of the cluster that switch at a time."""
    interval_s: float = 30.0
    """Between two readings of a job."""
    search: Limits = field(default_factory=Limits)


class Replanner:
    """What a pass sees of replanning, and carries out."""

    def __init__(
        self,
        cache: Cache,
        source: Source,
        fetch: Fetch,
        on_news: Callable[[Key], None],
        *,
        options: Options | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._clock, self.options = cache, clock, options or Options()
        self.reader = Reader(
            lambda: replannable(cache), source, on_news, switching=lambda: switching(cache), clock=clock
        )
        self.reader.tell_every_s = min(self.reader.tell_every_s, self.options.interval_s)
        self.searches = Searches(fetch, on_news, limits=self.options.search)
        self.count: Callable[[str, str], None] = lambda outcome, reason: None
        self._on_news = on_news
        self._lock = threading.Lock()
        self._granted: dict[str, float] = {}
        self._waiting: dict[str, Key] = {}
        """Jobs without a place, the longest waiting first: each is woken when one is kept for it, not again and again."""

    def start(self, stopping: threading.Event) -> None:
        """Begins to read, and to hand places out."""
        threading.Thread(target=self._hand_out_until, args=(stopping,), daemon=True).start()
        arguments = {"interval_s": self.options.interval_s}
        threading.Thread(target=self.reader.run, args=(stopping,), kwargs=arguments, daemon=True).start()

    @property
    def num_running(self) -> int:
        """Searches and switches under way."""
        return self.searches.num_running + len(self._switching())

    def seen(self, subject: Subject) -> Seen:
        """What is known of a job, apart from what its status says."""
        views = self._cache.support(CONFIG_MAPS, subject.uid)
        view = views.get(naming.plan_name(subject.base))
        search = self.searches.found(subject.uid)
        proposal: Proposal | None = None if search is None else search.proposal
        change = subject.status.replanning.change
        wants = (proposal is not None and proposal.state == "Done") or (change and change.state == "Proposed")
        return Seen(
            attempt=0,
            is_running=False,
            now_s=self._clock(),
            readings=self.reader.readings_of(subject.uid),
            in_force=view.plan if view is not None else "",
            stored=view.plans if view is not None else frozenset(),
            proposal=proposal,
            may_switch=self._may_switch(subject, wants=bool(wants)),
        )

    def act(self, api: Api, subject: Subject, action: Replan) -> None:
        """Carries out what was decided. Raises ApiError, ApiUnavailable, NotGone."""
        if action.counted is not None:
            self.count(*action.counted)
        for act in action.acts:
            match act:
                case Ask():
                    self._ask(subject, act)
                case Store():
                    self._store(api, subject, act)
                case PutInForce():
                    LOG.info("plan %s is put in force: %s", act.plan, act.why)
                    self._put(api, subject, act.plan)
                case Take():
                    self._take(subject.uid)
                case Forget():
                    self.searches.forget(subject.uid)

    def _ask(self, subject: Subject, ask: Ask) -> None:
        ranks = self._ranks(subject)
        if ranks is not None:
            self.searches.ask(subject.uid, ranks.key, url=ranks.planning_url, request=ask.request)

    def _ranks(self, subject: Subject) -> JobRanks | None:
        view = self._cache.rapjob((subject.namespace, subject.name))
        return None if view is None else ranks_of(view, self._cache.pods(subject.uid))

    def _store(self, api: Api, subject: Subject, store: Store) -> None:
        search = self.searches.found(subject.uid)
        if search is None or search.proposal.request != store.request:
            raise NotGone("what was searched is gone; it is searched again")
        plans = {search.proposal.plan: search.plan, search.proposal.fallback: search.fallback}
        name = naming.plan_name(subject.base)
        item = api.get(CONFIG_MAPS, subject.namespace, name)
        self._patch(api, subject, item, plan_config.storing(item, plans, keep=store.keep))

    def _put(self, api: Api, subject: Subject, plan: str) -> None:
        item = api.get(CONFIG_MAPS, subject.namespace, naming.plan_name(subject.base))
        if plan_config.in_force(item) != plan:
            self._patch(api, subject, item, plan_config.putting(item, plan))

    def _patch(self, api: Api, subject: Subject, item: plan_config.Object, change: plan_config.Object) -> None:
        metadata = {**change.get("metadata", {}), "resourceVersion": item["metadata"]["resourceVersion"]}
        body = {**change, "metadata": metadata}
        self._cache.put(CONFIG_MAPS, api.patch(CONFIG_MAPS, subject.namespace, item["metadata"]["name"], body))

    # -- the limit

    def hand_out(self) -> None:
        """Keeps free places for the jobs that wait the longest, and wakes them."""
        with self._lock:
            free = self.options.max_switching - len(self._holders()) if self._waiting else 0
            next_ones = list(islice(self._waiting.items(), max(free, 0)))
            for uid, _ in next_ones:
                del self._waiting[uid]
                self._granted[uid] = self._clock()
        for _, key in next_ones:
            self._on_news(key)

    def _hand_out_until(self, stopping: threading.Event) -> None:
        while not stopping.wait(HAND_OUT_S):
            try:
                self.hand_out()
            except Exception:
                LOG.exception("handing places out")

    def _switching(self) -> set[str]:
        return {view.meta.uid for view in self._cache.rapjobs() if is_switching(view)}

    def _holders(self) -> set[str]:
        now_s, switching = self._clock(), self._switching()
        self._granted = {
            uid: at_s for uid, at_s in self._granted.items() if uid not in switching and now_s - at_s < GRANT_S
        }
        return switching | set(self._granted)

    def _has_room(self, subject: Subject) -> bool:
        """Whether the job has a place or may take one; else it waits for its turn, and looking again costs nothing."""
        with self._lock:
            if subject.uid in self._waiting:
                return False
            holders = self._holders()
            if subject.uid in holders or len(holders) < self.options.max_switching:
                return True
            self._waiting[subject.uid] = (subject.namespace, subject.name)
            return False

    def _may_switch(self, subject: Subject, *, wants: bool) -> bool:
        if wants:
            return self._has_room(subject)
        with self._lock:
            self._waiting.pop(subject.uid, None)
        return True

    def _take(self, uid: str) -> None:
        with self._lock:
            holders = self._holders()
            if uid not in holders and len(holders) >= self.options.max_switching:
                raise NotGone("as many jobs as may are switching")
            self._granted[uid] = self._clock()
