"""A rank as a child process: forked from here, or a fresh interpreter. Both end when this process dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from rap_trainer.display.terminal import Form

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
ENV_LAUNCHER = "RAP_LAUNCHER_PID"


class RankProcess(Protocol):
    """A child that is one rank."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, 128 + n after signal n; None while it runs."""

    def send(self, number: int) -> None:
        """Sends a signal."""


class _Forked:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = _shell_code(os.waitstatus_to_exitcode(status))
        return self._code

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


class _Executed:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        code = self._process.poll()
        return None if code is None else _shell_code(code)

    def send(self, number: int) -> None:
        self._process.send_signal(number)


def fork_rank(job: Path, form: Form, environment: dict[str, str]) -> RankProcess:
    """A rank that starts with everything this process has imported. Named `rap-rank-N` in the process table."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    from rap_trainer.rank import end_process, run_rank

    os.setsid()  # Ctrl-C comes from the launcher alone
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(environment)
    name_process(f"rap-rank-{environment['RANK']}")
    end_with_parent(parent)
    end_process(run_rank(job, form))
    raise AssertionError("the process has ended")


def exec_rank(job: Path, form: Form, environment: dict[str, str]) -> RankProcess:
    """A rank in an interpreter of its own: a GPU's context does not survive a fork."""
    arguments = [sys.executable, "-m", "rap_trainer.cli", "run", str(job)]
    arguments += [] if form == "auto" else [f"--{form}"]
    launcher = {ENV_LAUNCHER: str(os.getpid())}
    return _Executed(
        subprocess.Popen(arguments, env={**os.environ, **environment, **launcher}, start_new_session=True)  # noqa: S603  # ourselves
    )


def name_process(name: str) -> None:
    """Sets the name that ps and top show, at most 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def end_with_parent(parent: int) -> None:
    """SIGTERM for this process when `parent` dies, however it does: a checkpoint, no orphan."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
