"""The Prometheus operator's kinds, as far as charts use them: written by hand from its API reference, unknown keys refused.

Not the real definitions, which are two orders of magnitude larger: a stand-in that refuses misspelt fields.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
FREE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


_KEY = _object(("key",), name=TEXT, key=TEXT, optional={"type": "boolean"})
_RELABELING = _object(
    action=TEXT,
    modulus={"type": "integer"},
    regex=TEXT,
    replacement=TEXT,
    separator=TEXT,
    sourceLabels=_list(TEXT),
    targetLabel=TEXT,
)
_SECRET_OR_CONFIG = _object(secret=_KEY, configMap=_KEY)
_TLS = _object(
    ca=_SECRET_OR_CONFIG,
    cert=_SECRET_OR_CONFIG,
    keySecret=_KEY,
    serverName=TEXT,
    insecureSkipVerify={"type": "boolean"},
)
_DURATION: Schema = {"type": "string", "pattern": "^(([0-9]+)(ms|s|m|h|d|w|y))+$"}
_ENDPOINT = _object(
    port=TEXT,
    path=TEXT,
    scheme={"type": "string", "enum": ["http", "https"]},
    interval=_DURATION,
    scrapeTimeout=_DURATION,
    honorLabels={"type": "boolean"},
    tlsConfig=_TLS,
    authorization=_object(type=TEXT, credentials=_KEY),
    relabelings=_list(_RELABELING),
    metricRelabelings=_list(_RELABELING),
)
_SELECTOR = _object(matchLabels=FREE, matchExpressions=_list(FREE))
_NAMESPACES = _object(any={"type": "boolean"}, matchNames=_list(TEXT))
_RULE = _object(
    ("expr",),
    alert=TEXT,
    record=TEXT,
    expr=TEXT,
    keep_firing_for=_DURATION,
    labels=FREE,
    annotations=FREE,
    **{"for": _DURATION},
)
_SPECS: dict[tuple[str, str], Schema] = {
    ("ServiceMonitor", "servicemonitors"): _object(
        ("endpoints", "selector"), endpoints=_list(_ENDPOINT), selector=_SELECTOR, namespaceSelector=_NAMESPACES
    ),
    ("PodMonitor", "podmonitors"): _object(
        ("selector",), podMetricsEndpoints=_list(_ENDPOINT), selector=_SELECTOR, namespaceSelector=_NAMESPACES
    ),
    ("PrometheusRule", "prometheusrules"): _object(
        groups=_list(_object(("name",), name=TEXT, interval=_DURATION, rules=_list(_RULE)))
    ),
}


def definitions() -> list[Schema]:
    """CustomResourceDefinitions of monitoring.coreos.com/v1."""
    group = "monitoring.coreos.com"
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.{group}",
                "annotations": {
                    "api-approved.kubernetes.io": "https://github.com/prometheus-operator/prometheus-operator"
                },
            },
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": _object(("spec",), spec=spec)},
                    }
                ],
            },
        }
        for (kind, plural), spec in _SPECS.items()
    ]
