"""Watches a rank's plan file and prepares what comes, in a thread beside training. Decides nothing and switches nothing.

A ConfigMap reaches a pod as a new file under the old name, so the file is looked at by its identity, not read, until
it is another one. What is broken or does not fit is a candidate too: one that this rank refuses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rap_contract.plan import Plan
from rap_contract.problem import InvalidDocument

from rap_trainer.plan.fits import PlanRefused
from rap_trainer.plan_inputs import read_plan
from rap_trainer.replan.candidate import Candidate, number_of, text_hash

log = logging.getLogger(__name__)
POLL_S = 0.5
"""A stat of the file costs some microseconds; a kubelet brings a ConfigMap within a minute."""
MAX_REASON = 200
"""Characters of a refusal that become a label of a metric."""


class PlanWatch:
    """The newest candidate of a file. `prepare` gets a runtime ready for a plan, or raises PlanRefused."""

    def __init__(self, path: Path, *, prepare: Callable[[Plan], None], in_force: Plan | None) -> None:
        self._path, self._prepare = path, prepare
        self._stopping = threading.Event()
        self._signature: tuple[int, ...] | None = None
        self._thread: threading.Thread | None = None
        self.candidate: Candidate | None = None
        """Replaced whole, so that reading it needs no lock."""
        if in_force is not None:
            number = number_of(in_force.hash)
            self.candidate = Candidate(number=number, hash=in_force.hash, plan=in_force)

    def start(self, *, poll_s: float = POLL_S) -> None:
        """Begins to watch."""
        self._thread = threading.Thread(target=self._run, args=(poll_s,), name="rap-plan-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Looks once: whatever is new is prepared or refused."""
        try:
            found = self._path.stat()
            signature = (found.st_ino, found.st_mtime_ns, found.st_size)
            if signature == self._signature:
                return
            text = self._path.read_text(errors="replace")
        except OSError:
            return  # no plan yet, or no longer: what runs stays
        self._signature = signature
        if not text.strip():
            return
        candidate = self._judged(text)
        known = self.candidate
        if known is None or known.number != candidate.number or known.plan is None:
            self.candidate = candidate

    def _judged(self, text: str) -> Candidate:
        seen_s, known = time.monotonic(), self.candidate
        try:
            plan = read_plan(self._path)
        except InvalidDocument as invalid:
            name = text_hash(text)
            log.warning("%s: not a plan: %s", self._path, invalid)
            return Candidate(number=number_of(name), hash=name, reason=_short(str(invalid)), seen_s=seen_s)
        number = number_of(plan.hash)
        if known is not None and known.number == number and known.plan is not None:
            return known
        try:
            self._prepare(plan)
        except PlanRefused as reason:
            log.warning("plan %s is not run: %s", plan.hash, reason)
            return Candidate(number=number, hash=plan.hash, reason=_short(str(reason)), seen_s=seen_s)
        except Exception as error:  # out of memory while it compiles or captures: the old plan still runs
            log.exception("plan %s could not be prepared", plan.hash)
            return Candidate(number=number, hash=plan.hash, reason=_short(repr(error)), seen_s=seen_s)
        return Candidate(number=number, hash=plan.hash, plan=plan, seen_s=seen_s)

    def _run(self, poll_s: float) -> None:
        while not self._stopping.wait(poll_s):
            try:
                self.look()
            except Exception:
                log.exception("%s could not be looked at", self._path)


def _short(reason: str) -> str:
    return " ".join(reason.split())[:MAX_REASON]
