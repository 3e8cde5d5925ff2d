# mypy: ignore-errors
# (kopf is not among our dependencies: the checks run without it)
"""The first half of the operator's work on kopf with its defaults: a throw-away, to compare memory and time.

    python -m kopf run tests/benchmarks/kopf_comparison.py --namespace NS      (KUBECONFIG names the cluster)

It makes the same children of a RAPJob from the same functions, and writes the phase when all pods run. It has
none of the rest: no failures, no attempts, no checks. `operator_scale.py --kopf` drives it.
"""

from __future__ import annotations

from typing import Any

import kopf
import kubernetes.client
import kubernetes.config
from rap_contract.status import Attempt, time_text
from rap_operator import children, naming
from rap_operator.api import ApiError, KubernetesApi
from rap_operator.observe import judge, subject_of
from rap_operator.resources import JOBS, RAPJOBS


def _client() -> KubernetesApi:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(client_configuration=configuration)
    return KubernetesApi(kubernetes.client.ApiClient(configuration))


API = _client()


@kopf.on.login()
def login(**kwargs: Any) -> Any:
    return kopf.login_with_kubeconfig(**kwargs)


@kopf.on.create("rap.dev", "v1alpha1", "rapjobs")
@kopf.on.resume("rap.dev", "v1alpha1", "rapjobs")
def made(body: kopf.Body, patch: kopf.Patch, **_: Any) -> None:
    """Makes all children and says that the attempt has begun."""
    item = dict(body)
    subject, judged = subject_of(item), judge(item)
    if judged.spec is None:
        raise kopf.PermanentError("; ".join(judged.problems))
    nodes = judged.spec.trainer.nodes
    attempt = Attempt(number=1, revision=judged.revision, nodes=nodes, recorded_at=time_text(0.0))
    wanted = [
        children.service(subject),
        children.plan_config(subject),
        children.spec_config(subject, judged.revision, judged.spec),
        children.budget(subject, nodes),
        (JOBS, children.attempt_job(subject, attempt, judged.spec)),
    ]
    for resource, document in wanted:
        try:
            API.create(resource, subject.namespace, document)
        except ApiError as error:
            if not error.is_conflict:
                raise
    patch.status["attempt"] = {"number": 1, "recordedAt": attempt.recorded_at, "nodes": nodes}
    patch.status["phase"] = "Starting"


@kopf.index("pods", labels={naming.LABEL_MANAGED_BY: naming.MANAGER})
def running(body: kopf.Body, labels: kopf.Labels, **_: Any) -> Any:
    """Running pods by the UID of their RAPJob."""
    if (body.get("status") or {}).get("phase") != "Running":
        return None
    return {labels[naming.LABEL_JOB_UID]: body["metadata"]["name"]}


@kopf.on.event("pods", labels={naming.LABEL_MANAGED_BY: naming.MANAGER})
def pod_changed(
    body: kopf.Body, annotations: kopf.Annotations, labels: kopf.Labels, running: kopf.Index[str, str], **_: Any
) -> None:
    """Writes the phase once all pods of an attempt run."""
    names = list(running.get(labels[naming.LABEL_JOB_UID], []))
    name, namespace = annotations[naming.ANNOTATION_JOB], body["metadata"]["namespace"]
    nodes = int(next(e["value"] for e in body["spec"]["containers"][0]["env"] if e["name"] == "RAP_NODES"))
    if len(names) >= nodes:
        API.patch(RAPJOBS, namespace, name, {"status": {"phase": "Running"}}, subresource="status")
