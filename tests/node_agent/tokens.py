"""Service account tokens of one pod, bound to it and renewed before they expire, as the kubelet does."""

from __future__ import annotations

import time

from node_agent.environment import ReferenceMissing
from servers.kube_api import KubeApi, KubeError, Object

DEFAULT_LIFE_S = 3600
RENEW_AT_RATIO = 0.8  # of its life: the kubelet's own rule


class TokenSource:
    """Asks the API server for tokens of the pod's ServiceAccount and keeps them while they are good."""

    def __init__(self, api: KubeApi, pod: Object) -> None:
        self._api = api
        metadata = pod["metadata"]
        account = pod["spec"].get("serviceAccountName", "default")
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        self._bound_to = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        self._kept: dict[tuple[str, int], tuple[str, float]] = {}

    def token(self, projection: Object) -> str:
        """Return a token for a serviceAccountToken projection."""
        life_s = int(projection.get("expirationSeconds", DEFAULT_LIFE_S))
        key = (projection.get("audience", ""), life_s)
        kept = self._kept.get(key)
        if kept and time.monotonic() < kept[1]:
            return kept[0]
        audiences = [key[0]] if key[0] else []
        spec = {"expirationSeconds": life_s, "audiences": audiences, "boundObjectRef": self._bound_to}
        try:
            token: str = self._api.create(self._path, {"spec": spec})["status"]["token"]
        except KubeError as refused:
            raise ReferenceMissing(f"no service account token: {refused}") from refused
        self._kept[key] = (token, time.monotonic() + RENEW_AT_RATIO * life_s)
        return token
