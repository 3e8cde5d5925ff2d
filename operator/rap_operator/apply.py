"""Carries a decision out. Each act may be repeated: names are deterministic, deletions name a UID.

Order: the actions, then the status in one patch that fails if the job has changed since it was read, then
events. Decides nothing, except that an attempt is not started while a live read still shows another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rap_contract.job import RAPJobSpec
from rap_contract.status import ConditionType, Status

from rap_operator import children, conditions, naming
from rap_operator.api import Api, ApiError, ApiUnavailable, Object
from rap_operator.cache import Cache
from rap_operator.decision import Action, Decision, KeepSupport, RemoveAttempt, RemovePod, Replan, StartAttempt
from rap_operator.events import EventSink
from rap_operator.observed import Judged, Observed, Subject
from rap_operator.resources import BUDGETS, CONFIG_MAPS, JOBS, PODS, RAPJOBS, SERVICES, Resource
from rap_operator.views import SupportView

LOG = logging.getLogger(__name__)
SUPPORT = (SERVICES, CONFIG_MAPS, BUDGETS)
MAX_FOUND_WELL = 5_000


class NotGone(Exception):
    """A live read shows something of another attempt."""


class Foreign(Exception):
    """An object has a name of ours but belongs to somebody else."""


class Applier:
    """Applies decisions to a cluster."""

    def __init__(self, api: Api, cache: Cache, events: EventSink) -> None:
        self._api, self._cache, self._events = api, cache, events
        self._found_well: dict[str, object] = {}
        """By UID of a job, what of its supporting objects was found to be as it should: a saving, not a truth."""

        self.replan: Callable[[Subject, Replan], None] = lambda subject, action: None

    def apply(self, decision: Decision, judged: Judged, observed: Observed) -> None:
        """Does everything a decision asks for. Raises ApiError, ApiUnavailable, NotGone, Foreign."""
        subject = observed.subject
        for action in decision.actions:
            self._do(action, judged, observed)
        self._write_status(subject, decision.status)
        for notice in decision.notices:
            self._events.tell(subject, notice)

    def say_refused(self, subject: Subject, why: str, *, now_s: float) -> None:
        """Writes into the status as it is that the server would not have what was due; never fails."""
        said = conditions.Said("False", "Refused", why)
        status = conditions.set_condition(
            subject.status, ConditionType.SCHEDULED, said, generation=subject.generation, now_s=now_s
        )
        try:
            self._write_status(subject, status)
        except (ApiError, ApiUnavailable) as error:
            LOG.info("the refusal was not written down: %s", error)

    def _do(self, action: Action, judged: Judged, observed: Observed) -> None:
        subject = observed.subject
        match action:
            case KeepSupport():
                self._keep_support(action, judged, observed)
            case StartAttempt():
                self._start(action, judged, observed)
            case RemoveAttempt():
                LOG.info("removing %s: %s", action.name, action.why)
                self._delete(JOBS, subject, action.name, action.uid, propagationPolicy="Foreground")
            case RemovePod():
                LOG.info("removing pod %s: %s", action.name, action.why)
                grace = {"gracePeriodSeconds": 0} if action.is_forced else {}
                self._delete(PODS, subject, action.name, action.uid, **grace)
            case Replan():
                self.replan(subject, action)
            case _:
                LOG.info("removing the job: %s", action.why)
                self._delete(RAPJOBS, subject, subject.name, subject.uid, propagationPolicy="Background")

    def _keep_support(self, action: KeepSupport, judged: Judged, observed: Observed) -> None:
        spec = _spec(action.revision, judged, observed)
        if action.is_spec_only:
            if spec is not None:
                self._keep(
                    CONFIG_MAPS, observed.subject, children.spec_config(observed.subject, action.revision, spec)[1]
                )
            return
        subject, there = observed.subject, self._support(observed.subject)
        world = (action.revision, action.nodes, action.kept, there)
        if self._found_well.get(subject.uid) == world:
            return
        has_surplus = False
        wanted = [children.service(subject), children.plan_config(subject)]
        if spec is not None:
            wanted.append(children.spec_config(subject, action.revision, spec))
        if action.nodes > 1:
            wanted.append(children.budget(subject, action.nodes))
        for resource, body in wanted:
            self._keep(resource, subject, body)
        kept = {(resource, body["metadata"]["name"]) for resource, body in wanted}
        for resource in (CONFIG_MAPS, BUDGETS):
            for name, view in self._cache.support(resource, subject.uid).items():
                is_kept = (resource, name) in kept or view.revision in action.kept
                if not is_kept and not view.meta.is_deleting:
                    has_surplus = True
                    self._delete(resource, subject, name, view.meta.uid)
        if len(self._found_well) >= MAX_FOUND_WELL:
            self._found_well.clear()
        if not has_surplus and self._support(subject) == there:
            self._found_well[subject.uid] = world

    def _support(self, subject: Subject) -> tuple[SupportView, ...]:
        return tuple(view for kind in SUPPORT for view in self._cache.support(kind, subject.uid).values())

    def _keep(self, resource: Resource, subject: Subject, body: Object) -> None:
        name = body["metadata"]["name"]
        seen = self._cache.support(resource, subject.uid).get(name)
        if seen is None:
            self._create(resource, subject, body)
        elif seen.content != children.content_of(body, resource.kind) and not seen.meta.is_deleting:
            LOG.info("mending %s %s", resource.kind, name)
            part: Object = {key: body[key] for key in ("spec", "data") if key in body}
            if resource is SERVICES:
                part["spec"] = {key: value for key, value in part["spec"].items() if key != "clusterIP"}
            self._cache.put(resource, self._api.patch(resource, subject.namespace, name, part))

    def _start(self, action: StartAttempt, judged: Judged, observed: Observed) -> None:
        subject, attempt = observed.subject, observed.status.attempt
        spec = _spec(action.revision, judged, observed)
        assert attempt is not None
        if spec is None:
            return
        self._check_gone(subject, action.number)
        LOG.info("starting attempt %d: %s", action.number, action.why)
        self._create(JOBS, subject, children.attempt_job(subject, attempt, spec))

    def _check_gone(self, subject: Subject, number: int) -> None:
        """The cache may lag: what runs is asked of the server itself before something is added to it.

        Pods of this very attempt count too: its Job may have been made and deleted by hand.
        """
        mine = naming.pod_selector(subject.uid)
        others = f"{mine},{naming.LABEL_ATTEMPT}!={number}"
        for resource, selector in ((JOBS, others), (PODS, mine))[0 if number > 1 else 1 :]:
            query = {"labelSelector": selector, "limit": "1"}
            if self._api.list(resource, subject.namespace, query=query).get("items"):
                raise NotGone(f"a {resource.kind} made before attempt {number} is still there")

    def _create(self, resource: Resource, subject: Subject, body: Object) -> None:
        name = body["metadata"]["name"]
        try:
            self._cache.put(resource, self._api.create(resource, subject.namespace, body))
        except ApiError as error:
            if not error.is_conflict or error.reason not in ("AlreadyExists", ""):
                raise
            found = self._api.get(resource, subject.namespace, name)
            owners = found["metadata"].get("ownerReferences") or ()
            if not any(owner["uid"] == subject.uid for owner in owners):
                raise Foreign(f"{resource.kind} {name} exists and is not ours: remove it") from error
            self._cache.put(resource, found)

    def _delete(self, resource: Resource, subject: Subject, name: str, uid: str, **options: Any) -> None:
        try:
            self._api.delete(resource, subject.namespace, name, {"preconditions": {"uid": uid}, **options})
        except ApiError as error:
            if not error.is_absent and not error.is_conflict:  # gone, or another object by now
                raise

    def _write_status(self, subject: Subject, status: Status) -> None:
        if status == subject.status:  # most passes: a quarter of the time of the two documents
            return
        change = difference(_document(subject.status), _document(status))
        if not change:
            return
        body = {"metadata": {"resourceVersion": subject.resource_version}, "status": change}
        try:
            item = self._api.patch(RAPJOBS, subject.namespace, subject.name, body, subresource="status")
        except ApiError as error:
            if error.is_absent:
                return
            raise
        self._cache.put(RAPJOBS, item)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Object:
    """The JSON merge patch from `old` to `new`."""
    change: Object = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = difference(before, value)
            if inner:
                change[key] = inner
        elif value != before:
            change[key] = value
    return change


def _document(status: Status) -> Object:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _spec(revision: str, judged: Judged, observed: Observed) -> RAPJobSpec | None:
    return judged.spec if judged.revision == revision else observed.stored.get(revision)
