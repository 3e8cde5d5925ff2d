"""`rap run`: starts the ranks of this machine, keeps them together, starts the group again when one is lost.

In a pod of several the operator says which node this is (`node.py`); the group over all pods is the operator's to start
again. Ranks get torchrun's environment, so torchrun can start them as well (`torchrun -m rap_trainer.cli run JOB`); then, with
RANK set, this only trains. It stands in for torchrun here because torchrun 2.11 kills its ranks 30 s after SIGTERM, before
a large checkpoint is written, hides their exit codes, and has no delay between restarts. On a CPU, ranks are forked from
a process that has imported TorchRec, which saves each start about 12 s; ranks with GPUs are started afresh, as CUDA
wants it.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rap_contract.job import RAPJobSpec
from rap_contract.pod import ExitCode

from rap_trainer.checkpoint.fence import Claim, newest_claim
from rap_trainer.cores import threads_of_rank, usable_cores
from rap_trainer.display.terminal import Form
from rap_trainer.jobfile import load_job
from rap_trainer.node import Node
from rap_trainer.process import ENV_LAUNCHER, RankProcess, end_with_parent, exec_rank, fork_rank
from rap_trainer.rank import end_process, run_rank
from rap_trainer.restarts import INTERRUPTED, Action, Restarts, group_code
from rap_trainer.stream.arrow_memory import keep_arrow_memory

log = logging.getLogger(__name__)

POLL_S = 0.05
PARTING_S = 10.0
"""After the first rank has failed the others end by themselves, with PEER_LOST; those that have not by then are killed.
A closed connection shows at once; the rest is for a report and the last words."""
FINISH_S = 120.0
"""The same after a rank has ended in order; its peers have only to say goodbye."""
IMMEDIATE_S = 2.0
"""Between the second Ctrl-C and the end of ranks that do not hear it."""


def launch(job_path: Path, *, num_ranks: int | None = None, display: Form = "auto") -> int:
    """Trains a job with `num_ranks` ranks here (default: the job's); gives the exit code. Raises InvalidDocument."""
    keep_arrow_memory()
    if "RANK" in os.environ:
        if ENV_LAUNCHER in os.environ:
            end_with_parent(int(os.environ[ENV_LAUNCHER]))
        end_process(run_rank(job_path, display))
    spec = load_job(job_path).spec
    size = num_ranks or spec.trainer.ranks_per_node
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_rank(spec.source, size, usable_cores())))
    # Threads that wait at a core's cost starve readers: beside a producer of 9,342 rows/s rows were 8 s old after a
    # minute, with sleeping ones 0.2 to 0.5 s (p99; 2 cores, 2026-11-30).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    start = exec_rank if spec.trainer.gpus_per_node else _forking()
    return _Group(job_path, spec, size=size, form=display, start=start).run()


Start = Callable[[Path, Form, dict[str, str]], RankProcess]


def _forking() -> Start:
    import rap_trainer.train  # noqa: F401  # imported once here, for all ranks and restarts

    return fork_rank


class _Group:
    """The ranks of this machine, over all their attempts."""

    def __init__(self, job_path: Path, spec: RAPJobSpec, *, size: int, form: Form, start: Start) -> None:
        self._job_path = job_path
        self._root = Path(spec.checkpoint.path)
        self._size = size
        self._form = form
        self._start = start
        self._restarts = Restarts(spec.restart_policy, managed=Claim.given(os.environ) is not None)
        self._ranks: list[RankProcess] = []
        self._signals: list[int] = []
        self._interrupted_s: float | None = None

    def run(self) -> int:
        """Attempts until one ends for good."""
        previous = {number: signal.signal(number, self._noted) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while True:
                began_s = time.monotonic()
                codes = self._attempt()
                code = group_code(codes)
                verdict = self._restarts.after(code, healthy_s=time.monotonic() - began_s, stopping=bool(self._signals))
                if verdict.action is Action.END:
                    return code
                log.warning("%s; attempt %d in %.0f s", _what(codes), self._next_claim().attempt, verdict.delay_s)
                if not self._pause(verdict.delay_s):
                    return code
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _attempt(self) -> list[int]:
        claim = self._next_claim()
        node = Node.given(os.environ, ranks_per_node=self._size)
        for rank in range(self._size):
            environment = {**node.environment(rank), **claim.environment}
            self._ranks.append(self._start(self._job_path, self._form, environment))
        for number in self._signals:
            self._forward(number)
        try:
            return self._watch()
        finally:
            self._ranks = []

    def _next_claim(self) -> Claim:
        return Claim.given(os.environ) or newest_claim(self._root).next(time.time())

    def _watch(self) -> list[int]:
        """Waits for all ranks; once one has ended, the others have a limited time."""
        limit_s: float | None = None
        killed: set[int] = set()
        while True:
            codes = [rank.poll() for rank in self._ranks]
            ended = [code for code in codes if code is not None]
            if len(ended) == self._size:
                if self._interrupted_s is not None:
                    return [INTERRUPTED]
                return [code for rank, code in enumerate(ended) if rank not in killed] or ended
            now_s = time.monotonic()
            if any(code not in (ExitCode.DONE, ExitCode.TERMINATED) for code in ended):
                limit_s = min(limit_s or now_s + PARTING_S, now_s + PARTING_S)
            elif ended:
                limit_s = limit_s or now_s + FINISH_S
            hurried = self._interrupted_s is not None and now_s - self._interrupted_s > IMMEDIATE_S
            if hurried or (limit_s is not None and now_s > limit_s):
                for number, rank in enumerate(self._ranks):
                    if rank.poll() is None:
                        killed.add(number)
                        rank.send(signal.SIGKILL)
            time.sleep(POLL_S)

    def _noted(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT:
            if signal.SIGINT in self._signals:
                self._interrupted_s = time.monotonic()
            else:
                os.write(2, b"stopping after a checkpoint; Ctrl-C again stops at once\n")
        self._signals.append(number)
        self._forward(number)

    def _forward(self, number: int) -> None:
        for rank in self._ranks:
            if rank.poll() is None:
                rank.send(number)

    def _pause(self, delay_s: float) -> bool:
        """Whether the pause passed without a request to stop."""
        until_s = time.monotonic() + delay_s
        while time.monotonic() < until_s and not self._signals:
            time.sleep(POLL_S)
        return not self._signals


def _what(codes: list[int]) -> str:
    """Which ranks ended how, but for those that only lost a peer."""
    code = group_code(codes)
    text = f"was killed by signal {signal.Signals(code - 128).name}" if code > 128 else f"ended with exit code {code}"
    return f"a rank {text}"
