"""SIGTERM and Ctrl-C: the first asks for a stop after a checkpoint, a second Ctrl-C stops at once.

A thread watches the wake-up descriptor, so that the second Ctrl-C works even while training sits in a collective.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

IMMEDIATE = 130
"""Exit code of the second Ctrl-C: 128 + SIGINT, as shells have it."""
REPEAT_S = 0.2
"""Two SIGINTs closer than this are one key press that arrived by two ways (terminal and launcher)."""


class StopRequest:
    """Whether this process was asked to stop. A context manager; signals act only inside, in the main thread."""

    def __init__(self) -> None:
        self.asked = False
        self._interrupted_s: float | None = None
        self._previous: dict[int, object] = {}
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._noted)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous:
            signal.set_wakeup_fd(-1)
            for number, handler in self._previous.items():
                signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave
        self._writer.close()

    def _noted(self, number: int, frame: FrameType | None) -> None:
        """Python's own handler: replaces the default action; the thread does the rest."""

    def _watch(self) -> None:
        while received := self._reader.recv(64):
            for number in received:
                if number == signal.SIGTERM:
                    self.asked = True
                elif number == signal.SIGINT:
                    self._interrupt(time.monotonic())
        self._reader.close()

    def _interrupt(self, now_s: float) -> None:
        if self._interrupted_s is not None and now_s - self._interrupted_s > REPEAT_S:
            sys.stderr.write("stopped at once; the last checkpoint stays\n")
            sys.stderr.flush()
            os._exit(IMMEDIATE)
        if self._interrupted_s is None:
            self._interrupted_s = now_s
        self.asked = True
