"""Searches under way and done, by job: a few worker processes, each with a deadline and a memory limit. In memory only:
what a dead operator was searching, the next one searches again.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from rap_operator.cache import Key
from rap_operator.pages import Fetch
from rap_operator.replanning.values import Proposal

LOG = logging.getLogger(__name__)
MAX_WAITING = 10_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of a search."""

    workers: int = 1
    deadline_s: float = 20.0
    """A search gives its best plan so far after half of it, and is killed after all of it."""
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search of a job, with the plans it found as JSON."""

    key: Key
    url: str
    proposal: Proposal
    plan: str = ""
    fallback: str = ""


class Searches:
    """The searches of all jobs. `on_done` is told whose has ended."""

    def __init__(self, fetch: Fetch, on_done: Callable[[Key], None], *, limits: Limits | None = None) -> None:
        self._fetch, self._on_done, self._limits = fetch, on_done, limits or Limits()
        self._lock = threading.Lock()
        self._by_uid: dict[str, Search] = {}
        self._waiting: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        self._threads: list[threading.Thread] = []

    def ask(self, uid: str, key: Key, *, url: str, request: str) -> None:
        """Begins a search unless the job has one."""
        with self._lock:
            if uid in self._by_uid:
                return
            self._by_uid[uid] = Search(key=key, url=url, proposal=Proposal(request=request, state="Running"))
            if not self._threads:
                self._start()
        self._waiting.put(uid)

    def found(self, uid: str) -> Search | None:
        """A job's search."""
        with self._lock:
            return self._by_uid.get(uid)

    def forget(self, uid: str) -> None:
        """Drops what a job's search came to; one under way goes on."""
        with self._lock:
            known = self._by_uid.get(uid)
            if known is not None and known.proposal.state != "Running":
                del self._by_uid[uid]

    @property
    def num_running(self) -> int:
        """Searches asked for and not done."""
        with self._lock:
            return sum(search.proposal.state == "Running" for search in self._by_uid.values())

    def close(self) -> None:
        """Ends the workers once they are done with what they have."""
        for _ in self._threads:
            self._waiting.put(None)

    def _start(self) -> None:
        for number in range(self._limits.workers):
            thread = threading.Thread(target=self._work, name=f"replan-search-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        process = _Process(self._limits)
        while (uid := self._waiting.get()) is not None:
            with self._lock:
                search = self._by_uid[uid]
            try:
                done = _done(search, process.answer(self._fetch(search.url)))
            except (OSError, ValueError) as error:
                LOG.info("%s/%s: no plan was searched: %s", *search.key, error)
                done = _failed(search, f"{type(error).__name__}: {error}")
            with self._lock:
                self._by_uid[uid] = done
            self._on_done(search.key)
        process.kill()


class _Process:
    """A worker process, started anew when it was killed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None

    def answer(self, page: str) -> dict[str, object]:
        """Raises TimeoutError past the deadline, ValueError for an answer that is none (the process has died)."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._limits.deadline_s, process.kill)
        timer.start()
        try:
            process.stdin.write(" ".join(page.splitlines()) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if not line:
            self.kill()
            if is_late:
                raise TimeoutError(f"the search took longer than {self._limits.deadline_s:.0f} s and was ended")
            raise ValueError("the search's process has died; it may take more memory with --search-memory-mib")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("the search's answer is no object")
        return found

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            limits = self._limits
            command = [sys.executable, "-m", "rap_operator.replanning.worker"]
            command += ["--memory-bytes", str(limits.memory_bytes), "--deadline-seconds", str(limits.deadline_s / 2)]
            self._process = subprocess.Popen(  # noqa: S603  # ourselves
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._process


def _done(search: Search, found: dict[str, object]) -> Search:
    if "error" in found:
        return _failed(search, str(found["error"]))
    numbers = [found[name] for name in ("beforeSeconds", "afterSeconds")]
    if not all(isinstance(number, int | float) for number in numbers):
        return _failed(search, "the search's answer has no predictions")
    before_s, after_s = (float(str(number)) for number in numbers)
    proposal = replace(
        search.proposal,
        state="Done",
        plan=str(found["hash"]),
        shape=str(found["shape"]),
        before=str(found["before"]),
        fallback=str(found["fallback"]),
        before_seconds=before_s,
        after_seconds=after_s,
        indicative=bool(found["indicative"]),
        corrected=found.get("corrected") is True,
    )
    return replace(search, proposal=proposal, plan=str(found["plan"]), fallback=str(found["fallbackPlan"]))


def _failed(search: Search, message: str) -> Search:
    return replace(search, proposal=replace(search.proposal, state="Failed", message=message[:1000]))
