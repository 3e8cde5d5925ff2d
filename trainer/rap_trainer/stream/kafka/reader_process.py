"""Starts and ends a reader process, seen from the training process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from rap_trainer.stream.kafka import ring
from rap_trainer.stream.kafka.frames import ReaderOptions

END_S = 4.0  # for the reader to commit and to leave by itself


class ReaderProcess:
    """One running reader with its link and its ring."""

    def __init__(self, options: ReaderOptions, *, ring_bytes: int) -> None:
        file = ring.create(ring_bytes)
        mine, theirs = socket.socketpair()
        my_news, their_news = socket.socketpair()
        try:
            self.ring = ring.RingReader(file)
            self._process = subprocess.Popen(  # noqa: S603  # this very interpreter
                [
                    sys.executable,
                    "-m",
                    "rap_trainer.stream.kafka.reader",
                    str(theirs.fileno()),
                    str(their_news.fileno()),
                ],
                pass_fds=(theirs.fileno(), their_news.fileno(), file),
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else None,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self.link = Connection(mine.detach())
            self._news = Connection(my_news.detach())
            self._news_lock = threading.Lock()
            self._ends: dict[int, int] = {}
            self.link.send(replace(options, ring_file=file))
        finally:
            os.close(file)
            theirs.close()
            their_news.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ends(self) -> dict[int, int]:
        """Where partitions end, about a second old. From any thread; never blocks."""
        with self._news_lock, suppress(EOFError, OSError):
            while self._news.poll():
                self._ends = self._news.recv()
        return self._ends

    def ended(self) -> str:
        """How it ended, for a person; waits for that."""
        self.close()
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """Ends it; idempotent."""
        self.link.close()  # the reader notices
        with self._news_lock:
            self._news.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
