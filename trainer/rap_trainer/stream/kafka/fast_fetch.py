"""Larger reads and fewer copies between kafka-python's sockets and its records; what it returns stays the same.

kafka-python 3.0 reads a socket 4 KB at a time and copies each byte eleven times until it is in a record's value. Here
that is 256 KB and five times: three times as many bytes a core second (Criteo's Arrow messages, our 2 cores, 2026-11). Only what
reads a topic in bulk asks for it. Parts of the library that are no part of its interface are replaced (`fewer_copies.py`), so a
release that was not tried, or has other parts, is left as it is and read as it comes: slower, and right.
"""

from __future__ import annotations

import logging

import kafka

log = logging.getLogger(__name__)

KNOWN_LINE = "3.0."
MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Environment of a process that fetches: glibc keeps the buffers of one answer for the next. Without it each is mapped
anew, and a page fault every 4 KB takes a quarter of the time (here, 2026-11)."""


def speed_up() -> bool:
    """For all clients of this process that are made from now on. Returns whether this release is a known one."""
    if not kafka.__version__.startswith(KNOWN_LINE):
        return _as_it_is(f"only {KNOWN_LINE}x was tried with fewer copies")
    try:
        from rap_trainer.stream.kafka import fewer_copies  # another release may not have what it imports

        fewer_copies.install()
    except (ImportError, AttributeError) as error:
        return _as_it_is(str(error))
    return True


def _as_it_is(why: str) -> bool:
    log.warning("kafka-python %s is read as it comes, about a third as fast: %s", kafka.__version__, why)
    return False
