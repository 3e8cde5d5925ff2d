"""How the allocator of a process that reads files treats memory: set before Arrow is imported, which is when it is read.

It gives freed memory back to the system, and the next piece of a stream pays for fresh pages: 3,000 page faults a million
rows of Criteo's columns, none if it is kept; 46,000 with lists of 5, or 7,000 (2 Xeon cores, 2026-11-30; docs/performance.md).
A source frees as much as it asks for, so the most it held once is what it holds. Delays of 1 and 10 s left the faults as they were.
"""

from __future__ import annotations

import os

KEPT = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Never gives back (mimalloc, the default of Arrow's pools)."""


def keep_arrow_memory() -> None:
    """For this process and those it starts, unless the user has said otherwise."""
    for name, value in KEPT.items():
        os.environ.setdefault(name, value)
