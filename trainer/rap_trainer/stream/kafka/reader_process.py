"""Starts and ends a reader process, seen from the training process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

from rap_trainer.stream.kafka import ring
from rap_trainer.stream.kafka.fast_fetch import MALLOC
from rap_trainer.stream.kafka.frames import ReaderOptions

END_S = 4.0  # for the reader to commit and to leave by itself


class OpenReader(Protocol):
    """A reader that somebody runs, seen from one rank."""

    link: Connection
    ring: ring.RingReader

    @property
    def pid(self) -> int | None:
        """None: it is another rank's child."""

    def ends(self) -> dict[int, int]:
        """Where partitions end, about a second old. From any thread; never blocks."""

    def ended(self) -> str:
        """How it ended, for a person; waits for that."""

    def close(self) -> None:
        """Ends it as far as it is this rank's; idempotent."""


class ReaderProcess:
    """One running reader with its link and its ring. Implements OpenReader."""

    def __init__(
        self, options: ReaderOptions, *, ring_bytes: int, others: Sequence[socket.socket] = (), ring_file: int = -1
    ) -> None:
        """`others` are the reader's ends of other ranks' links; the ring is then `ring_file`. The caller closes both."""
        with ExitStack() as ours:
            file = ring_file
            if file < 0:
                file = ring.create(ring_bytes)
                ours.callback(os.close, file)
            mine, theirs = socket.socketpair()
            my_news, their_news = socket.socketpair()
            ours.enter_context(closing(theirs))
            ours.enter_context(closing(their_news))
            self.ring = ring.RingReader(file)
            ends = [end.fileno() for end in (their_news, theirs, *others)]
            self._process = subprocess.Popen(  # noqa: S603  # this very interpreter
                [sys.executable, "-m", "rap_trainer.stream.kafka.reader", *map(str, ends)],
                pass_fds=(*ends, file),
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else None,
                env={**MALLOC, **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self.link = Connection(mine.detach())
            self._news = Connection(my_news.detach())
            self._news_lock = threading.Lock()
            self._ends: dict[int, int] = {}
            self.link.send(replace(options, ring_file=file))

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ends(self) -> dict[int, int]:
        """See OpenReader."""
        with self._news_lock, suppress(EOFError, OSError):
            while self._news.poll():
                self._ends = self._news.recv()
        return self._ends

    def ended(self) -> str:
        """See OpenReader."""
        self.close()
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """See OpenReader."""
        self.link.close()  # the reader notices
        with self._news_lock:
            self._news.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
