"""Events of a job, each once: by a deterministic name at the server, and by memory before it is asked."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from rap_contract.job import API_VERSION, KIND

from rap_operator.api import Api, ApiError, ApiUnavailable, Object
from rap_operator.notice import Notice
from rap_operator.observed import Subject
from rap_operator.resources import EVENTS

LOG = logging.getLogger(__name__)
REPEAT_AFTER_S = 1800.0  # an identical event is told again after so long (Flink's operator: 30 min)
MAX_REMEMBERED = 10_000
MAX_AHEAD_S = 10  # so many events of one second keep their order
COMPONENT = "rap-operator"


class EventSink:
    """Writes Events; never fails a pass."""

    def __init__(self, api: Api, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._api, self._wall_clock = api, wall_clock
        self._lock = threading.Lock()
        self._told: OrderedDict[str, float] = OrderedDict()
        self._last_s: OrderedDict[str, int] = OrderedDict()
        """Time of the last event of a job, by its UID."""

    def tell(self, subject: Subject, notice: Notice) -> None:
        """Writes an event unless the same was written lately."""
        now_s = self._wall_clock()
        attempt = subject.status.attempt.number if subject.status.attempt else 0
        said = f"{subject.uid}/{attempt}/{notice.reason}/{notice.message}"
        if not self._is_news(said, now_s):
            return
        window = int(now_s // REPEAT_AFTER_S)
        digest = hashlib.sha256(f"{said}/{window}".encode()).hexdigest()[:16]
        written = event(subject, notice, f"{subject.base}.{digest}", self._later(subject.uid, now_s))
        try:
            self._api.create(EVENTS, subject.namespace, written)
        except ApiError as error:
            if not error.is_conflict:
                LOG.info("event %s was not written: %s", notice.reason, error)
        except ApiUnavailable as error:
            LOG.info("event %s was not written: %s", notice.reason, error)

    def _later(self, uid: str, now_s: float) -> int:
        """Now, or a second after the job's last event: kubectl sorts them by whole seconds, and those of one second anyhow."""
        with self._lock:
            last_s = self._last_s.get(uid, 0)
            # A clock that was set back is followed: waiting for the old time would date events of hours to come alike.
            moment_s = last_s + 1 if 0 <= last_s - int(now_s) < MAX_AHEAD_S else int(now_s)
            self._last_s[uid] = moment_s
            self._last_s.move_to_end(uid)
            if len(self._last_s) > MAX_REMEMBERED:
                self._last_s.popitem(last=False)
        return moment_s

    def _is_news(self, said: str, now_s: float) -> bool:
        with self._lock:
            if now_s - self._told.get(said, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
                return False
            self._told[said] = now_s
            self._told.move_to_end(said)
            if len(self._told) > MAX_REMEMBERED:
                self._told.popitem(last=False)
        return True


def event(subject: Subject, notice: Notice, name: str, now_s: float) -> Object:
    """A core/v1 Event about a RAPJob."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": subject.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": subject.namespace,
            "name": subject.name,
            "uid": subject.uid,
            "resourceVersion": subject.resource_version,
        },
        "type": notice.level,
        "reason": notice.reason,
        "message": notice.message[:1024],
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }
