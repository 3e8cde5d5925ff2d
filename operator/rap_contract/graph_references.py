"""Which features read which: an order in which each comes after those it reads, names that do not exist, cycles.

Looks at names only; types come later, in that order.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rap_contract.features import Feature
from rap_contract.graph_names import Columns, Named, suggest
from rap_contract.ops import Op
from rap_contract.problem import Path, Problem


@dataclass(frozen=True)
class Fault:
    """A problem of one feature; equal faults of a group's columns are reported together."""

    problem: Problem
    column: str


@dataclass(frozen=True)
class Order:
    """Features in an order that references allow; those of a cycle, and all that read them, are left out."""

    features: tuple[Named, ...]
    faults: tuple[Fault, ...]


def order_of(features: Sequence[Named], groups: Sequence[Feature], columns: Columns) -> Order:
    """The order of all features, nearest to the document's, with the faults of their references."""
    first = {feature.name: place for place, feature in reversed(list(enumerate(features)))}
    faults: list[Fault] = []
    reads: list[dict[int, Path]] = []
    for feature in features:
        found, wrong = _reads(feature, groups[feature.group], first, columns)
        reads.append(found)
        faults += wrong
    order = _sorted(reads)
    left = sorted(set(range(len(features))) - set(order))
    faults += _cycles(left, features, reads)
    return Order(tuple(features[place] for place in order), tuple(faults))


def parameter_of(op: Op, name: str) -> str:
    """The YAML key of the parameter that holds a reference."""
    for field, info in type(op).model_fields.items():
        if getattr(op, field) == name:
            return info.alias or field
    return op.yaml_name()


def _reads(
    feature: Named, group: Feature, first: Mapping[str, int], columns: Columns
) -> tuple[dict[int, Path], list[Fault]]:
    """Places of the features that `feature` reads, each with the parameter that says so."""
    found: dict[int, Path] = {}
    faults: list[Fault] = []
    for place, step in enumerate(group.ops):
        op: Op = step.op
        for name in op.references():
            path: Path = (*feature.path, "ops", place, op.yaml_name(), parameter_of(op, name))
            if name in columns.types or name in columns.untyped:
                continue
            if name in first:
                found.setdefault(first[name], path)
                continue
            message = f"{name} is neither a column nor a feature"
            problem = Problem(path=path, message=message, hint=suggest(name, [*columns.types, *first]))
            faults.append(Fault(problem, feature.column))
    return found, faults


def _sorted(reads: Sequence[Mapping[int, Path]]) -> list[int]:
    """Kahn's algorithm, smallest place first."""
    waits = [len(each) for each in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for reader, each in enumerate(reads):
        for place in each:
            readers[place].append(reader)
    ready = [place for place, number in enumerate(waits) if number == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers[place]:
            waits[reader] -= 1
            if waits[reader] == 0:
                heapq.heappush(ready, reader)
    return order


def _cycles(left: Sequence[int], features: Sequence[Named], reads: Sequence[Mapping[int, Path]]) -> list[Fault]:
    """One fault for each cycle among the features that are left."""
    faults: list[Fault] = []
    remaining = set(left)
    for start in left:
        walked: list[int] = []
        place: int | None = start if start in remaining else None
        while place is not None and place not in walked:
            walked.append(place)
            place = min((each for each in reads[place] if each in remaining), default=None)
        if place is not None:
            cycle = walked[walked.index(place) :]
            names = " -> ".join(features[each].name for each in [*cycle, place])
            problem = Problem(
                path=reads[cycle[-1]][place],
                message=f"features read each other in a cycle: {names}",
                hint="let one of them read a column instead",
            )
            faults.append(Fault(problem, features[cycle[-1]].column))
        remaining -= set(walked)
    return faults
