"""Pod templates for ranks that are processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def pod_sharing(folder: Path, *, grace_s: int, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The spec of a pod that finds a folder of this machine at its own path, with one thread a rank."""
    given = {"OMP_NUM_THREADS": "1", **(environment or {})}
    container = {
        "name": "trainer",
        "volumeMounts": [{"name": "data", "mountPath": str(folder)}],
        "env": [{"name": name, "value": value} for name, value in given.items()],
    }
    return {
        "containers": [container],
        "volumes": [{"name": "data", "hostPath": {"path": str(folder)}}],
        "securityContext": {"runAsNonRoot": False},
        "terminationGracePeriodSeconds": grace_s,
    }
