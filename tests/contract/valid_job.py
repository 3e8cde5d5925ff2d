"""A small valid RAPJob document, and variants of it with one thing changed."""

import copy
from typing import Any

VALID: dict[str, Any] = {
    "apiVersion": "rap.dev/v1alpha1",
    "kind": "RAPJob",
    "metadata": {"name": "clicks"},
    "spec": {
        "source": {"files": {"path": "/data/events"}},
        "columns": {"label": "int32", "int_{0..2}": "float32", "cat_{0..1}": "list<int64>"},
        "label": "label",
        "features": [
            {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0}}, {"logit": {"eps": 1e-5}}]},
            {
                "columns": ["cat_{0..1}"],
                "ops": [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 0}}, {"firstx": {"count": 1}}],
                "table": {"rows": [100, 200], "dim": 16},
            },
        ],
        "model": {"dlrm": {"bottom": [32, 16], "top": [32, 1]}},
        "checkpoint": {"path": "/checkpoints/clicks"},
    },
}


def changed(*path_and_value: Any) -> dict[str, Any]:
    """VALID with one value replaced; `...` as the value removes the key."""
    document = copy.deepcopy(VALID)
    *path, last, value = path_and_value
    node: Any = document
    for part in path:
        node = node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return document
