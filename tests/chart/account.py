"""The chart's own ServiceAccount and roles in any namespace of a test: what the operator is allowed there and no more."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from pathlib import Path

from chart.rendering import render
from servers.kube_api import Object
from servers.kubernetes_cluster import KubernetesCluster

Rules = Sequence[Object]
Permission = tuple[str, str]
"""A resource and a verb."""

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "rap"
LEASE = "rap-operator"  # the name the operator's command takes by default


@functools.cache
def _rendered_roles() -> str:
    values = {"watchNamespaces": ["ads"], "leaderElection": {"leaseName": LEASE}, "test": {"enabled": False}}
    return json.dumps([item for item in render(values) if item["kind"] == "Role"])


def chart_rules() -> tuple[Rules, Rules]:
    """The rules of the chart: where jobs run, and for the Lease."""
    roles: list[Object] = json.loads(_rendered_roles())
    jobs = next(role["rules"] for role in roles if role["metadata"]["namespace"] == "ads")
    lease = next(role["rules"] for role in roles if role["metadata"]["name"].endswith("-lease"))
    return jobs, lease


def single_permissions() -> list[Permission]:
    """Everything the chart grants."""
    rules = [rule for part in chart_rules() for rule in part]
    return [(name, verb) for rule in rules for name in rule["resources"] for verb in rule["verbs"]]


def chart_account(cluster: KubernetesCluster, namespace: str, *, without: Permission | None = None) -> Path:
    """Grants the chart's roles, less one permission, to an account in a namespace; the account's kubeconfig."""
    api, place = cluster.api, f"namespaces/{namespace}"
    api.create(f"/api/v1/{place}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    for name, rules in zip((ACCOUNT, f"{ACCOUNT}-lease"), chart_rules(), strict=True):
        api.create(f"{RBAC}/{place}/roles", {"metadata": {"name": name}, "rules": _less(rules, without)})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        api.create(f"{RBAC}/{place}/rolebindings", binding)
    return cluster.kubeconfig_for_service_account(namespace, ACCOUNT)


def _less(rules: Rules, permission: Permission | None) -> list[Object]:
    kept = copy.deepcopy(list(rules))
    for rule in kept:
        if permission and permission[0] in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != permission[1]]
    return [rule for rule in kept if rule["verbs"]]
