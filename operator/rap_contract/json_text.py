"""Reads and writes JSON of profiles and plans: canonical bytes, and strict limits on text that nobody vouches for.

Not for RAPJobs: those are YAML and have their own reader.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from rap_contract.model import Model
from rap_contract.problem import InvalidDocument, Path, Problem

MAX_BYTES = 16 * 2**20  # a plan of 5,000 features takes about 1 MB
MAX_DEPTH = 16  # ours nest 6 deep
MAX_SHOWN = 60  # characters of a wrong value in a message

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
Read = TypeVar("Read", bound=Model)


def canonical(model: Model, *, without: frozenset[str] = frozenset()) -> str:
    """One line of JSON, equal for equal values; `without` leaves out fields by their Python names."""
    document = model.model_dump(mode="json", by_alias=True, exclude=set(without))
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """16 hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_json(text: str, *, hint: str) -> Any:
    """Plain values of a JSON text within limits. Raises InvalidDocument for huge, deep or broken texts, and for NaN."""
    if len(text) > MAX_BYTES:
        _refuse(f"larger than {MAX_BYTES} bytes", hint, value=f"{len(text)} characters")
    if _depth(text) > MAX_DEPTH:
        _refuse(f"nested deeper than {MAX_DEPTH} levels", hint)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        problem = Problem(path=(), message=f"not JSON: {error.msg}", hint=hint, line=error.lineno)
        raise InvalidDocument([problem]) from None
    except (ValueError, RecursionError) as error:
        _refuse(f"not JSON: {error}", hint)


def read_document(kind: type[Read], document: object, *, hint: str) -> Read:
    """The value that plain values describe. Raises InvalidDocument with every problem found."""
    bad = _not_finite(document, ())
    if bad:
        message = "not a finite number"
        raise InvalidDocument([Problem(path=path, message=message, hint=hint, value=value) for path, value in bad])
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InvalidDocument([_problem(details, hint) for details in error.errors(include_url=False)]) from None


def _problem(details: Any, hint: str) -> Problem:
    message = {"missing": "required", "extra_forbidden": "unknown key"}.get(details["type"], details["msg"])
    whole = details["type"] in ("missing", "extra_forbidden") or not details["loc"]
    value = "" if whole else repr(details["input"])[:MAX_SHOWN]
    return Problem(path=details["loc"], message=message.removeprefix("Value error, "), hint=hint, value=value)


def _not_finite(value: object, path: Path) -> list[tuple[Path, str]]:
    if isinstance(value, float):
        return [] if math.isfinite(value) else [(path, repr(value))]
    if isinstance(value, dict):
        return [found for key, child in value.items() for found in _not_finite(child, (*path, str(key)))]
    if isinstance(value, list):
        return [found for index, child in enumerate(value) for found in _not_finite(child, (*path, index))]
    return []


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} given twice")
    return document


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", _STRING.sub('""', text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _refuse(message: str, hint: str, *, value: str = "") -> NoReturn:
    raise InvalidDocument([Problem(path=(), message=message, hint=hint, value=value)])
