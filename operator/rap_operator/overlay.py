"""Merges a user's partial object into ours the way Kubernetes' strategic merge patch does.

Maps merge; lists of objects that have a name merge by it; other lists are replaced; null removes;
`$patch: delete` and `$patch: replace` are honoured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Lists of a pod template that merge, with the key they merge by (core/v1 types' patchMergeKey)."""


def merged(ours: Any, theirs: Any, *, field: str = "") -> Any:
    """`ours` with `theirs` laid over it. Neither is changed. Lists that merge keep our order, then theirs."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return _merged_maps(ours, theirs)
    if isinstance(theirs, list) and isinstance(ours, list) and field in MERGE_KEYS:
        return _merged_lists(ours, theirs, MERGE_KEYS[field])
    return _without_directives(theirs)


def conflicts(ours: Any, theirs: Any, *, place: str, field: str = "") -> tuple[str, ...]:
    """Where `theirs` is of another shape than what it is to be laid over; each begins with its place."""
    if isinstance(ours, Mapping):
        if not isinstance(theirs, Mapping):
            return (f"{place}: a mapping is due, got {_kind(theirs)}",)
        found = [
            conflict
            for key, value in theirs.items()
            if key in ours and value is not None
            for conflict in conflicts(ours[key], value, place=f"{place}.{key}", field=key)
        ]
        return tuple(found)
    if isinstance(ours, list):
        if not isinstance(theirs, list):
            return (f"{place}: a list is due, got {_kind(theirs)}",)
        if field in MERGE_KEYS:
            return _item_conflicts(ours, theirs, merge_key=MERGE_KEYS[field], place=place)
    return ()


def _item_conflicts(ours: list[Any], theirs: list[Any], *, merge_key: str, place: str) -> tuple[str, ...]:
    found: list[str] = []
    for index, item in enumerate(theirs):
        where = f"{place}[{index}]"
        if not isinstance(item, Mapping):
            found.append(f"{where}: a mapping is due, got {_kind(item)}")
        elif not isinstance(item.get(merge_key), str | int) and item.get("$patch") != "replace":
            found.append(f"{where}.{merge_key}: required, it says which item is meant")
        else:
            same = [mine for mine in ours if mine.get(merge_key) == item.get(merge_key)]
            for mine in same:
                found += conflicts(mine, item, place=where)
    return tuple(found)


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "a text", type(None): "null"}.get(type(value), repr(value))


def _merged_maps(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    if theirs.get("$patch") == "replace":
        return {key: _without_directives(value) for key, value in theirs.items() if key != "$patch"}
    result = dict(ours)
    for key, value in theirs.items():
        if value is None:
            result.pop(key, None)
        elif key in result:
            result[key] = merged(result[key], value, field=key)
        else:
            result[key] = _without_directives(value)
    return result


def _merged_lists(ours: list[Any], theirs: list[Any], merge_key: str) -> list[Any]:
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" and merge_key not in item for item in theirs):
        return [item for item in theirs if not (isinstance(item, Mapping) and "$patch" in item)]
    result = list(ours)
    places = {item.get(merge_key): index for index, item in enumerate(ours) if isinstance(item, Mapping)}
    removed = set()
    for item in theirs:
        key = item.get(merge_key) if isinstance(item, Mapping) else None
        if isinstance(item, Mapping) and item.get("$patch") == "delete":
            removed.add(key)
        elif key is not None and key in places:
            result[places[key]] = merged(result[places[key]], item)
        else:
            result.append(_without_directives(item))
    return [item for item in result if not (isinstance(item, Mapping) and item.get(merge_key) in removed)]


def _without_directives(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_directives(v) for k, v in value.items() if k != "$patch" and v is not None}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value
