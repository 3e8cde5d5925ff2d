"""The names of a job: its columns with their types, and its features with their columns.

Expands patterns and finds names that are missing, malformed or given twice. Knows no op.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from rap_contract.features import Feature
from rap_contract.job import RAPJobSpec
from rap_contract.names import expand
from rap_contract.problem import Path, Problem
from rap_contract.types import ValueType

COLUMN = "{column}"
MAX_COMPARED = 1_000  # names a misspelt one is compared with: about 3 ms; thousands of each would take minutes


@dataclass(frozen=True, kw_only=True)
class Named:
    """A feature before its chain is read."""

    name: str
    column: str
    weights: str | None
    rows: int | None
    """Rows of its table; None without one or where their number is a problem."""
    group: int
    """Its place in `spec.features`."""

    @property
    def path(self) -> Path:
        return ("spec", "features", self.group)


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known name, or what to do without one."""
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6) if len(names) <= MAX_COMPARED else []
    return f"did you mean {close[0]}?" if close else "declare it under spec.columns"


@dataclass(frozen=True)
class Columns:
    """Declared columns."""

    types: dict[str, ValueType]
    untyped: frozenset[str]
    """Declared, but with a type that does not exist: reported once, not again wherever they are used."""


def columns_of(spec: RAPJobSpec) -> tuple[Columns, list[Problem]]:
    """Declared columns by name, and what is wrong with them."""
    columns: dict[str, ValueType] = {}
    untyped: set[str] = set()
    problems: list[Problem] = []
    for pattern, text in spec.columns.items():
        path: Path = ("spec", "columns", pattern)
        try:
            names = expand(pattern)
        except ValueError as error:
            problems.append(Problem(path=path, message=str(error), hint="write it as name_{0..25}"))
            continue
        try:
            value = ValueType.parse(text)
        except ValueError as error:
            problems.append(Problem(path=path, message=str(error), hint="a list of ids is list<int64>"))
            untyped.update(names)
            continue
        twice = [name for name in names if name in columns]
        if twice:
            problems.append(Problem(path=path, message=f"column {some(twice)} is declared twice", hint="remove one"))
        columns.update(dict.fromkeys(names, value))
    return Columns(columns, frozenset(untyped)), problems


def label_problems(spec: RAPJobSpec, columns: Columns) -> list[Problem]:
    """What is wrong with the label."""
    path: Path = ("spec", "label")
    if spec.label in columns.untyped:
        return []
    if spec.label not in columns.types:
        return [Problem(path=path, message=f"unknown column {spec.label}", hint=suggest(spec.label, columns.types))]
    if columns.types[spec.label].is_list:
        message = f"the label {spec.label} is a {columns.types[spec.label]}"
        return [Problem(path=path, message=message, hint="declare it as int32 or float32: one number a row")]
    return []


def features_of(spec: RAPJobSpec) -> tuple[list[Named], list[Problem]]:
    """All features of all groups, in order, and what is wrong with their names."""
    named: list[Named] = []
    problems: list[Problem] = []
    for index, group in enumerate(spec.features):
        found, wrong = _group(index, group)
        named += found
        problems += wrong
    first: dict[str, Named] = {}
    twice: dict[int, list[str]] = {}
    for feature in named:
        if first.setdefault(feature.name, feature) is not feature:
            twice.setdefault(feature.group, []).append(feature.name)
    for index, names in twice.items():
        path: Path = ("spec", "features", index, "name" if spec.features[index].name else "columns")
        message = f"feature {some(names)} exists already, in spec.features[{first[names[0]].group}]"
        problems.append(Problem(path=path, message=message, hint="give `name`; for several columns it holds {column}"))
    return named, problems


def _group(index: int, group: Feature) -> tuple[list[Named], list[Problem]]:
    path: Path = ("spec", "features", index)
    problems: list[Problem] = []
    columns: list[str] = []
    for place, pattern in enumerate(group.columns):
        try:
            columns += expand(pattern)
        except ValueError as error:
            problems.append(Problem(path=(*path, "columns", place), message=str(error), value=pattern))
    if group.name is not None and len(columns) > 1 and COLUMN not in group.name:
        message = f"{len(columns)} columns would share the name {group.name}"
        hint = f"write {{column}} where the column's name goes, such as {group.name}_{{column}}"
        return [], [*problems, Problem(path=(*path, "name"), message=message, hint=hint)]
    rows: list[int | None] = [None] * len(columns)
    if group.table is not None:
        given = group.table.rows
        if isinstance(given, int):
            rows = [given] * len(columns)
        elif len(given) == len(columns):
            rows = list(given)
        elif columns:
            message = f"{len(given)} numbers of rows for {len(columns)} columns"
            hint = f"give one number, or {len(columns)}"
            problems.append(Problem(path=(*path, "table", "rows"), message=message, hint=hint))
    named = [
        Named(
            name=(group.name or COLUMN).replace(COLUMN, column),
            column=column,
            weights=None if group.weights is None else group.weights.replace(COLUMN, column),
            rows=number,
            group=index,
        )
        for column, number in zip(columns, rows, strict=True)
    ]
    return named, problems


def some(names: list[str]) -> str:
    """A few names and how many more."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
