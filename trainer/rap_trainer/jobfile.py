"""Reads a RAPJob from a YAML file; every problem carries the line it stands on.

The checks themselves live in `rap_contract.validation`; this is only the way from text to a document.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path

import yaml
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.problem import Path as Place
from rap_contract.validation import check_job

MAX_BYTES = 3 * 2**20  # etcd refuses objects above 1.5 MiB; JSON of a YAML with comments is smaller
MAX_NODES = 1_000_000  # after aliases are followed: a bomb of anchors stops here


def load_job(path: Path) -> RAPJob:
    """The job in a YAML file. Raises InvalidDocument with every problem, each with its line."""
    text = _read(path)
    root = _compose(text, path)
    _refuse_bombs_and_duplicates(root)
    document = yaml.SafeLoader(text).construct_document(root)
    try:
        return check_job(document)
    except InvalidDocument as invalid:
        raise InvalidDocument([p.with_line(_line_of(root, p.path)) for p in invalid.problems]) from None


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        hint = "give the path of a RAPJob YAML file"
        raise InvalidDocument([Problem(path=(), message=f"{path}: {error.strerror}", hint=hint)]) from None
    if len(raw) > MAX_BYTES:
        raise InvalidDocument([Problem(path=(), message=f"{path}: larger than {MAX_BYTES} bytes")])
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidDocument([Problem(path=(), message=f"{path}: not UTF-8", line=line)]) from None


def _compose(text: str, path: Path) -> yaml.Node:
    try:
        documents = [node for node in yaml.compose_all(text, yaml.SafeLoader) if node is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error)
        line = None if mark is None else mark.line + 1
        hint = "check indentation, quotes and brackets around this line"
        raise InvalidDocument([Problem(path=(), message=f"{path}: not YAML: {what}", line=line, hint=hint)]) from None
    except RecursionError:
        raise InvalidDocument([Problem(path=(), message=f"{path}: nested too deeply")]) from None
    if len(documents) != 1:
        hint = "one RAPJob a file"
        message = f"{path}: {len(documents)} YAML documents"
        raise InvalidDocument([Problem(path=(), message=message, hint=hint)])
    return documents[0]


def _refuse_bombs_and_duplicates(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}
    problems: list[Problem] = []

    def size(node: yaml.Node, place: Place) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        sizes[id(node)] = MAX_NODES  # an alias of its own ancestor never ends
        total = 1
        if isinstance(node, yaml.MappingNode):
            seen: set[Hashable] = set()
            for key, value in node.value:
                if key.value in seen:
                    line = key.start_mark.line + 1
                    problems.append(
                        Problem(path=(*place, key.value), message="given twice", hint="remove one", line=line)
                    )
                seen.add(str(key.value))
                total += 1 + size(value, (*place, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(value, (*place, i)) for i, value in enumerate(node.value))
        sizes[id(node)] = total
        return total

    if size(root, ()) >= MAX_NODES:
        problems.append(Problem(path=(), message=f"more than {MAX_NODES} values once aliases are followed"))
    if problems:
        raise InvalidDocument(problems)


def _line_of(root: yaml.Node, place: Place) -> int:
    """The line of the deepest part of `place` that the document has, from 1."""
    node, line = root, root.start_mark.line
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1
