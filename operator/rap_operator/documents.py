"""Parsed JSON of the API server, however deep. Not here: what a document means, and whether it is refused.

The server takes objects of ten thousand levels, parsers give up before; and one object that cannot be read would
keep a list, and so every other job, from being seen.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json

# A pod template with its affinities is 16 deep, a RAPJob's whole object 20; the parser gives up at 200.
MAX_DEPTH = 150
TOO_DEEP = f"(left out: nested deeper than {MAX_DEPTH} levels)"
"""Stands where a part was."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')


def parsed(data: bytes) -> Any:
    """The value of a JSON text, its parts below MAX_DEPTH levels replaced by TOO_DEEP. Raises ValueError.

    A third cheaper than `json.loads`, and equal strings are mostly one object.
    """
    try:
        return from_json(data)
    except ValueError:
        return from_json(_cut(data))


def _cut(data: bytes) -> bytes:
    kept, begin, depth = bytearray(), 0, 0
    for token in _TOKEN.finditer(data):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += data[begin : token.start()] + f'"{TOO_DEEP}"'.encode()
        elif first in b"]}":
            if depth == MAX_DEPTH + 1:
                begin = token.end()
            depth -= 1
    return bytes(kept + data[begin:])
