"""A control plane with the admission that makes owner references a matter of permission, and what helm does to it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from chart.rendering import CHART, NAMESPACE, RELEASE, Values, helm
from servers.kube_api import KubeError, Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.processes import ServerProcess
from servers.waiting import wait_until

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class StrictCluster(KubernetesCluster):
    """The authoriser is RBAC as always; blockOwnerDeletion needs `update` of the owner's finalizers."""

    def _process(self, name: str, *flags: str, health: str | None) -> ServerProcess:
        more = ("--enable-admission-plugins=OwnerReferencesPermissionEnforcement",) if name == "kube-apiserver" else ()
        return super()._process(name, *flags, *more, health=health)

    def restricted_namespace(self, name: str) -> None:
        """Makes a namespace whose pods must satisfy the restricted profile, unless it is there."""
        if self.api.find(f"/api/v1/namespaces/{name}") is None:
            self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})

    def helm(self, verb: str, *arguments: str, values: Values | None = None, limit_s: float = 240) -> str:
        """Runs helm against this cluster for the release of the tests."""
        place = (f"--namespace={NAMESPACE}", f"--kubeconfig={self.kubeconfig}")
        return helm(verb, RELEASE, *place, *arguments, values=values, limit_s=limit_s)

    def helm_install(self, *arguments: str, values: Values, chart: str = str(CHART)) -> str:
        """`helm install`, waiting until the operator is ready."""
        return self.helm("install", chart, "--wait", "--timeout=120s", *arguments, values=values)

    @cached_property
    def _kinds(self) -> dict[tuple[str, str], tuple[str, bool]]:
        return {}

    def path_of(self, item: Object) -> str:
        """Path of the collection an object belongs to, by the server's own discovery."""
        version, kind = item["apiVersion"], item["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._kinds:
            for found in self.api.get(root)["resources"]:
                if "/" not in found["name"]:
                    self._kinds[version, found["kind"]] = (found["name"], found["namespaced"])
        plural, is_namespaced = self._kinds[version, kind]
        place = f"/namespaces/{item['metadata'].get('namespace', NAMESPACE)}" if is_namespaced else ""
        return f"{root}{place}/{plural}"

    def dry_run(self, item: Object) -> None:
        """Asks the server whether it would take an object as it is, unknown fields refused. Raises KubeError."""
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            self.api.request("POST", self.path_of(item), body=item, query=query)
        except KubeError as refused:
            if refused.reason != "AlreadyExists":
                raise

    def wait_served(self, path: str) -> None:
        """Waits until a new kind's collection answers."""

        def is_served() -> bool:
            try:
                return self.api.find(path) is not None
            except KubeError as refused:
                if refused.status != 429:  # the storage of a new kind is being made
                    raise
                return False

        wait_until(is_served, limit_s=30, what=f"{path} to be served")

    def everything_of_the_release(self) -> list[str]:
        """Objects anywhere with the chart's label, as kind/name."""
        label = {"labelSelector": f"app.kubernetes.io/instance={RELEASE}"}
        found: list[str] = []
        for path in _COLLECTIONS:
            items: list[dict[str, Any]] = self.api.items(path, **label)
            found += [f"{path.rpartition('/')[2]}/{item['metadata']['name']}" for item in items]
        return found


_COLLECTIONS = (
    "/api/v1/pods",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/serviceaccounts",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
)
