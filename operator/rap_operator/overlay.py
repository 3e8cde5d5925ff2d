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
