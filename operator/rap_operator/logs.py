"""Log lines as JSON, each with the job and the attempt its pass is about."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_JOB: ContextVar[tuple[str, int] | None] = ContextVar("job", default=None)


@contextmanager
def job_context(job: str, attempt: int) -> Iterator[None]:
    """Marks the log lines within as being about a job (`namespace/name`) and its attempt."""
    token = _JOB.set((job, attempt))
    try:
        yield
    finally:
        _JOB.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about = _JOB.get()
        if about is not None:
            line |= {"job": about[0], "attempt": about[1]}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str) -> None:
    """Sends all log lines to stderr as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns of each connection it does not keep
