"""Checks a RAPJob document and says everything that is wrong with it at once.

Pure: from a parsed document to a job or problems. Lines of a YAML file are added by whoever read it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rap_contract.graph import compile_features
from rap_contract.job import API_VERSION, RAPJob, RAPJobSpec
from rap_contract.names import expand
from rap_contract.problem import InvalidDocument, Path, Problem

MAX_SHOWN = 60  # characters of a wrong value in a message


def check_job(document: object) -> RAPJob:
    """The job a document describes. Raises InvalidDocument with every problem."""
    if not isinstance(document, Mapping):
        hint = f"start with `apiVersion: {API_VERSION}` and `kind: RAPJob`"
        raise InvalidDocument([Problem(path=(), message="a RAPJob is a mapping", hint=hint, value=_shown(document))])
    try:  # by the keys that the API server knows, and no others
        job = RAPJob.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidDocument(_of_shape(error, document)) from None
    problems = _of_relations(job.spec)
    if problems:
        raise InvalidDocument(problems)
    return job


def _of_shape(error: ValidationError, document: object) -> list[Problem]:
    return [_problem(details, document) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails, document: object) -> Problem:
    path = _place(details["loc"], document)
    message, hint = details["msg"].removeprefix("Value error, "), ""
    if details["type"] == "extra_forbidden":
        message, hint = "unknown key", _suggestion(path, document)
    elif details["type"] == "missing":
        message, hint = "required", "add it"
    value = "" if details["type"] in {"missing", "extra_forbidden"} else _shown(details["input"])
    return Problem(path=path, message=message, hint=hint, value=value)


def _place(location: Path, document: object) -> Path:
    """The document's own path of pydantic's location, which also names the branches of unions it tried."""
    path: list[str | int] = []
    node = document
    for part in location:
        if isinstance(node, Mapping):
            path.append(part)
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int):
            path.append(part)
            node = node[part] if part < len(node) else None
    return tuple(path)


def _suggestion(path: Path, document: object) -> str:
    known = [*_keys_at(path[:-1])]
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"known here: {', '.join(sorted(known))}" if known else "remove it"


def _keys_at(path: Path) -> list[str]:
    """The keys the contract knows at a place of the document."""
    model: Any = RAPJob
    for part in path:
        if isinstance(part, int):
            continue
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        if field is None:
            return []
        model = _model_in(field.annotation)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _of_relations(spec: RAPJobSpec) -> list[Problem]:
    _, problems = compile_features(spec)
    return [*problems, *_of_source(spec), *_of_trainer(spec)]


def _of_source(spec: RAPJobSpec) -> list[Problem]:
    kind = "kafka" if spec.source.kafka else "files"
    source = spec.source.kafka or spec.source.files
    assert source is not None
    path: Path = ("spec", "source", kind)
    problems = []
    if source.format in {"csv", "tsv"} and not source.csv.header and not source.csv.column_names:
        hint = "list them in file order, or set `header: true`"
        problems.append(Problem(path=(*path, "csv", "columnNames"), message="required without a header", hint=hint))
    if source.dead_letter is not None and source.dead_letter.topic and kind == "files":
        hint = "give `path`, a directory"
        place = (*path, "deadLetter", "topic")
        problems.append(Problem(path=place, message="a file source has no topic to write to", hint=hint))
    declared = {name for pattern in spec.columns for name in _expanded(pattern)}
    for index, pattern in enumerate(source.csv.hex_columns):
        for name in _expanded(pattern):
            if name not in declared:
                place = (*path, "csv", "hexColumns", index)
                problems.append(
                    Problem(path=place, message=f"column {name!r} is not declared", hint="see spec.columns")
                )
                break
    return problems


def _of_trainer(spec: RAPJobSpec) -> list[Problem]:
    trainer = spec.trainer
    if trainer.gpus_per_node and trainer.processes_per_node != 1:
        hint = "a GPU has one rank: remove processesPerNode"
        place: Path = ("spec", "trainer", "processesPerNode")
        return [Problem(path=place, message="only for trainers without GPUs", hint=hint)]
    if trainer.runtime == "captured" and not trainer.gpus_per_node:
        hint = "use `auto` or `eager`, or give gpusPerNode"
        return [Problem(path=("spec", "trainer", "runtime"), message="captured needs GPUs", hint=hint)]
    return []


def _expanded(pattern: str) -> tuple[str, ...]:
    try:
        return expand(pattern)
    except ValueError:
        return ()  # the features' own check reports the pattern


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
