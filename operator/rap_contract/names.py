"""Name patterns: `cat_{0..25}` stands for 26 names."""

from __future__ import annotations

import re

RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
MAX_NAMES = 10_000  # of one pattern: far above the widest models seen, far below what hurts


def expand(pattern: str) -> tuple[str, ...]:
    """All names a pattern stands for, in order. Raises ValueError for a reversed or huge range."""
    match = RANGE.search(pattern)
    if match is None:
        return (pattern,)
    first, last = int(match.group(1)), int(match.group(2))
    if last < first:
        raise ValueError(f"the range {match.group(0)} runs backwards")
    if last - first >= MAX_NAMES:
        raise ValueError(f"the range {match.group(0)} stands for more than {MAX_NAMES} names")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    names = tuple(name for i in range(first, last + 1) for name in expand(f"{head}{i}{tail}"))
    if len(names) > MAX_NAMES:
        raise ValueError(f"{pattern} stands for more than {MAX_NAMES} names")
    return names
