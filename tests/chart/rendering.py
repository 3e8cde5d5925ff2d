"""The chart as Helm renders it, and the matrix of values its snapshots are taken over.

PYTHONPATH=operator:trainer:tests python tests/chart/rendering.py      writes the snapshots anew
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from servers import build

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "rap"
GOLDEN = ROOT / "tests" / "golden" / "chart"
RELEASE, NAMESPACE = "rap", "rap-system"
MONITORING = "monitoring.coreos.com/v1"
Object = dict[str, Any]
Values = Mapping[str, Any]

MATRIX: dict[str, Values] = {
    "default": {},
    "one-namespace": {"watchNamespaces": ["ads"], "rbac": {"aggregate": False}, "test": {"enabled": False}},
    "namespaces-and-replicas": {
        "watchNamespaces": ["ads", "ranking", "ads"],
        "replicaCount": 3,
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "priorityClass": {"create": True},
        "networkPolicy": {
            "enabled": True,
            "apiServerCidrs": ["10.0.0.1/32"],
            "extraEgress": [{"ports": [{"port": 1}]}],
        },
        "test": {"namespace": "ranking", "image": {"registry": "registry.example", "tag": "cpu"}},
    },
    "monitoring": {
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "namespace": "watch"},
            "tls": {"secretName": "rap-metrics"},
            "bearerToken": {"secretName": "rap-token", "key": "bearer"},
        },
        "admission": {"modelFactories": ["ads.models:*"], "images": ["registry.example/rap-trainer:*"]},
        "trainers": {
            "metrics": {"secretName": "rap-trainers"},
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "scheme": "https"},
        },
        "networkPolicy": {"enabled": True, "ingressFrom": [{"namespaceSelector": {"matchLabels": {"name": "watch"}}}]},
    },
    "everything-else": {
        "fullnameOverride": "operator",
        "commonLabels": {"team": "ads"},
        "image": {"registry": "registry.example/rap/", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "leaderElection": {"enabled": False},
        "operator": {"logLevel": "debug", "workers": 8},
        "extraArgs": ["--identity=the-only-one"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraEnvFrom": [{"configMapRef": {"name": "more", "optional": True}}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "crds": {"install": False},
        "serviceAccount": {"create": False, "name": "somebody"},
        "deploymentAnnotations": {"a": "1"},
        "podAnnotations": {"b": "2"},
        "podLabels": {"c": "3"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control-plane", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"},
        ],
        "priorityClassName": "system-cluster-critical",
        "podDisruptionBudget": {"enabled": False},
        "metrics": {"service": {"enabled": False}},
        "test": {"podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
    },
}
"""Names of snapshots, and the values they show."""


class HelmError(Exception):
    """What helm complained of."""


def helm(*arguments: str, values: Values | None = None, limit_s: float = 120) -> str:
    """Runs helm; what it prints. Raises HelmError with its complaint."""
    command = [str(build.helm() / "helm"), *arguments]
    if values is not None:
        command += ["--values", "-"]
    text = None if values is None else json.dumps(values)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=limit_s)
    if done.returncode:
        raise HelmError(f"{done.stdout}\n{done.stderr}")
    return done.stdout


def render(values: Values, *arguments: str, chart: Path = CHART, apis: tuple[str, ...] = (MONITORING,)) -> list[Object]:
    """All objects of the chart, hooks included."""
    flags = [f"--api-versions={api}" for api in apis]
    text = helm("template", RELEASE, str(chart), f"--namespace={NAMESPACE}", *flags, *arguments, values=values)
    return [document for document in yaml.safe_load_all(text) if document]


@functools.cache
def rendered(case: str) -> str:
    """A case of the matrix as JSON, so that no test edits another's objects; rendered once."""
    return json.dumps(render(MATRIX[case]))


def key_of(item: Object) -> str:
    """Kind, namespace and name."""
    metadata = item["metadata"]
    return f"{item['kind']} {metadata.get('namespace', '-')}/{metadata['name']}"


def snapshot(case: str) -> str:
    """The rendered objects as one sorted YAML text; scripts and the CRD stand in other files and are left out."""
    found = {}
    for item in json.loads(rendered(case)):
        if item["kind"] == "CustomResourceDefinition":
            item = {**item, "spec": "..."}
        if item["kind"] == "ConfigMap":
            item = {**item, "data": dict.fromkeys(item["data"], "...")}
        found[key_of(item)] = item
    return yaml.safe_dump_all([found[key] for key in sorted(found)], sort_keys=True, width=120)


if __name__ == "__main__":
    for name in MATRIX:
        (GOLDEN / f"{name}.yaml").write_text(snapshot(name))
