"""A `Task` as plain JSON values and back: how a trainer hands its job to whoever searches a plan for it. No I/O."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rap_contract.problem import InvalidDocument, Problem

from rap_planner.task import Task

HINT = "trainer and operator must be of the same version"
_TASKS: TypeAdapter[Task] = TypeAdapter(Task)


def task_document(task: Task) -> dict[str, Any]:
    """Plain values; memory without a bound is null."""
    bounded = task if math.isfinite(task.memory_bytes) else replace(task, memory_bytes=0.0)
    document: dict[str, Any] = _TASKS.dump_python(bounded, mode="json")
    if bounded is not task:
        document["memory_bytes"] = None
    return document


def task_from(document: object) -> Task:
    """Raises InvalidDocument for values that are not those of a task."""
    is_unbounded = isinstance(document, dict) and document.get("memory_bytes", 0.0) is None
    values = {**document, "memory_bytes": 0.0} if isinstance(document, dict) and is_unbounded else document
    try:
        task = _TASKS.validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ("task", *first["loc"])
        raise InvalidDocument([Problem(path=path, message=first["msg"], hint=HINT)]) from None
    return replace(task, memory_bytes=math.inf) if is_unbounded else task
