"""From a pod's death to the Job of the next attempt, with every other job at rest."""

from __future__ import annotations

import time

from benchmarks.fake_kubelet import FakeKubelet
from rap_operator.naming import LABEL_ATTEMPT, LABEL_JOB_UID
from rap_operator.resources import JOBS
from servers.kube_api import KubeApi, Object

EVERY_S = 0.02
LIMIT_S = 120.0


def seconds_to_next_attempt(api: KubeApi, kubelet: FakeKubelet, pod: Object) -> float:
    """Ends a pod and waits for the next attempt's Job, the job's own delay included. Raises TimeoutError."""
    labels, namespace = pod["metadata"]["labels"], pod["metadata"]["namespace"]
    following = f"{LABEL_JOB_UID}={labels[LABEL_JOB_UID]},{LABEL_ATTEMPT}={int(labels[LABEL_ATTEMPT]) + 1}"
    begun_s = time.monotonic()
    kubelet.fail(pod, 1)
    while not api.get(JOBS.path(namespace), labelSelector=following)["items"]:
        if time.monotonic() - begun_s > LIMIT_S:
            raise TimeoutError(f"no attempt after {LIMIT_S:.0f} s")
        time.sleep(EVERY_S)
    return time.monotonic() - begun_s
