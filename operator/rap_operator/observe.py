"""Gathers what a pass decides on, from the cache; reads the server only for a spec that is no longer current."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from rap_contract.job import RAPJobSpec
from rap_contract.problem import InvalidDocument
from rap_contract.status import Status
from rap_contract.validation import check_job

from rap_operator import pod_template
from rap_operator.api import Api, ApiError
from rap_operator.cache import Cache, RapJobView
from rap_operator.children import JOB_KEY
from rap_operator.documents import MAX_DEPTH, TOO_DEEP
from rap_operator.naming import spec_name
from rap_operator.observed import Judged, Observed, Subject, Telemetry
from rap_operator.replanning.values import Seen
from rap_operator.resources import CONFIG_MAPS
from rap_operator.spec_change import revision_of

LOG = logging.getLogger(__name__)
T = TypeVar("T")
MAX_SPEC_BYTES = 900_000  # a ConfigMap holds 1 MiB with its metadata
MAX_REMEMBERED = 1_000  # judged specs; one is 20-200 kB


class Observer:
    """Makes the values of a pass."""

    def __init__(self, api: Api, cache: Cache, telemetry_of: Callable[[Subject], Telemetry | None]) -> None:
        self._api, self._cache, self._telemetry_of = api, cache, telemetry_of
        self._judged: Remembered[Judged] = Remembered(MAX_REMEMBERED)
        self._stored: Remembered[RAPJobSpec] = Remembered(MAX_REMEMBERED)
        self.replan_of: Callable[[Subject], Seen | None] = lambda subject: None

    def observe(self, view: RapJobView) -> tuple[Judged, Observed]:
        """The job's spec after validation, and its world."""
        subject = subject_of(view.item)
        judged = self._judged.get(f"{subject.uid}/{subject.generation}", lambda: judge(view.item))
        observed = Observed(
            subject=subject,
            stored=self._stored_specs(subject, judged),
            jobs=self._cache.jobs(subject.uid),
            pods=self._cache.pods(subject.uid),
            telemetry=self._telemetry_of(subject),
            replan=self.replan_of(subject),
        )
        return judged, observed

    def _stored_specs(self, subject: Subject, judged: Judged) -> Mapping[str, RAPJobSpec]:
        enforced = subject.status.revision.enforced
        if not enforced or enforced == judged.revision or subject.is_managed_elsewhere:
            return {}
        name = spec_name(subject.base, enforced)
        view = self._cache.support(CONFIG_MAPS, subject.uid).get(name)
        version = view.meta.resource_version if view else ""
        try:
            spec = self._stored.get(f"{subject.uid}/{name}/{version}", lambda: self._read(subject, name))
        except ApiError as error:
            if not error.is_absent:
                raise
            return {}
        except (InvalidDocument, ValueError, RecursionError) as error:
            LOG.warning("ConfigMap %s/%s holds no valid job: %s", subject.namespace, name, error)
            return {}
        return {enforced: spec}

    def _read(self, subject: Subject, name: str) -> RAPJobSpec:
        item = self._api.get(CONFIG_MAPS, subject.namespace, name)
        return check_job(json.loads((item.get("data") or {}).get(JOB_KEY, "null"))).spec


def judge(item: Mapping[str, Any]) -> Judged:
    """Validates a RAPJob document as `rap validate` does."""
    document = {
        "apiVersion": item.get("apiVersion"),
        "kind": item.get("kind"),
        "metadata": {"name": item["metadata"]["name"]},
        "spec": item.get("spec"),
    }
    text = json.dumps(document)
    if len(text) > MAX_SPEC_BYTES:
        return Judged(problems=(f"spec: {len(text)} bytes as JSON, at most {MAX_SPEC_BYTES}: use patterns and groups",))
    if TOO_DEEP in text:
        return Judged(problems=(f"spec: nested deeper than {MAX_DEPTH} levels: no part of a job needs that",))
    try:
        spec = check_job(document).spec
    except InvalidDocument as invalid:
        return Judged(problems=tuple(str(problem) for problem in invalid.problems))
    wrong = pod_template.problems(spec)
    if wrong:
        return Judged(problems=wrong)
    return Judged(spec=spec, revision=revision_of(spec))


def subject_of(item: Mapping[str, Any]) -> Subject:
    """The RAPJob of a document. A status that cannot be read counts as lost."""
    metadata = item["metadata"]
    try:
        status = Status.model_validate(item.get("status") or {})
    except ValidationError as error:
        LOG.warning("status of %s/%s is unreadable: %s", metadata.get("namespace"), metadata["name"], error)
        status = Status()
    return Subject(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata.get("resourceVersion", ""),
        generation=metadata.get("generation", 1),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        is_deleting="deletionTimestamp" in metadata,
        raw_spec=item.get("spec") or {},
        status=status,
    )


class Remembered(Generic[T]):
    """The last results of a pure function, by key; bounded."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not remembered."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        return value
