"""A `Task` as plain JSON values and back: how a trainer hands its job to whoever searches a plan for it. No I/O."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rap_contract.plan import FusedKernel
from rap_contract.problem import InvalidDocument, Problem

from rap_planner.task import Item, Piece, Task

HINT = "trainer and operator must be of the same version"


def task_document(task: Task) -> dict[str, Any]:
    """Plain values; memory without a bound is null."""
    return {
        "job": task.job,
        "items": [asdict(item) for item in task.items],
        "kernels": [kernel.model_dump(mode="json", by_alias=True) for kernel in task.kernels],
        "idleSeconds": list(task.idle_seconds),
        "reservedBytes": list(task.reserved_bytes),
        "memoryBytes": task.memory_bytes if math.isfinite(task.memory_bytes) else None,
    }


def task_from(document: object) -> Task:
    """Raises InvalidDocument for values that are not those of a task."""
    try:
        assert isinstance(document, dict)
        memory = document["memoryBytes"]
        return Task(
            job=str(document["job"]),
            items=tuple(_item(item) for item in document["items"]),
            kernels=tuple(FusedKernel.model_validate(kernel) for kernel in document["kernels"]),
            idle_seconds=tuple(_number(value) for value in document["idleSeconds"]),
            reserved_bytes=tuple(_number(value) for value in document["reservedBytes"]),
            memory_bytes=math.inf if memory is None else _number(memory),
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        message = f"not a task: {type(error).__name__}: {error}"
        raise InvalidDocument([Problem(path=("task",), message=message[:400], hint=HINT)]) from None


def _item(values: dict[str, Any]) -> Item:
    pieces = tuple(
        Piece(kernel=int(piece["kernel"]), num_bytes=_number(piece["num_bytes"]), num_ops=_number(piece["num_ops"]))
        for piece in values["pieces"]
    )
    return Item(
        name=str(values["name"]),
        group=str(values["group"]),
        chain=str(values["chain"]),
        pieces=pieces,
        raw_bytes=_number(values["raw_bytes"]),
        out_bytes=_number(values["out_bytes"]),
        owner=None if values["owner"] is None else int(values["owner"]),
    )


def _number(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]  # what is no number raises
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is no size")
    return number
