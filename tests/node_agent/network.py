"""The network of pods: every pod has a loopback address of its own in 127.0.0.0/8.

All pods share this machine's network, so two pods that bind a port on all addresses collide; a
server in a pod should bind its pod's own address. In exchange, everything that tests start on
loopback (API server, Kafka) is reachable from pods without routes or forwarding.
"""

from __future__ import annotations

import itertools
import random
import threading


class LoopbackNetwork:
    """Hands out 127.R.x.y with R drawn once, so that several agents on one machine rarely meet."""

    def __init__(self) -> None:
        self._second = random.SystemRandom().randint(16, 239)
        self._lock = threading.Lock()
        self._next = itertools.count(1)

    def address(self) -> str:
        """Return an address nobody has had before (64,000 of them, then from the start)."""
        with self._lock:
            third, fourth = divmod(next(self._next) % 64_000, 250)
        return f"127.{self._second}.{third}.{fourth + 2}"
