"""Writes plain values as YAML, the same bytes every time: generated files are compared with committed ones.

Block style only, strings as JSON when they are not plainly words. Reads nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"^[A-Za-z_./][A-Za-z0-9_./-]*( [A-Za-z0-9_./(][A-Za-z0-9_./();'+-]*)*$")
_WORDS_WITH_MEANING = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"}


def yaml_text(value: Any) -> str:
    """A document of mappings, sequences, strings, numbers, booleans and None."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        lines = []
        for key, child in value.items():
            if isinstance(child, Mapping | list) and child:
                indent = "  " if isinstance(child, Mapping) else ""
                lines += [f"{_scalar(key)}:", *(indent + line for line in _lines(child))]
            else:
                lines.append(f"{_scalar(key)}: {_scalar(child)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for child in value:
            first, *rest = _lines(child)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _WORDS_WITH_MEANING:
        return value
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 reads 1e-05 as a string
    return text
