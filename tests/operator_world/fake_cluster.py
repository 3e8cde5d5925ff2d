"""A cluster in memory for the operator's tests: an API, and as much of its controllers as the operator relies on.

Jobs make pods, pods run and end, owners take their children with them, Jobs that are deleted in the foreground
stay until their pods are gone. Time stands until a test moves it. It keeps a ledger of what must never happen.
"""

from __future__ import annotations

import copy
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from rap_contract.status import time_text
from rap_operator.api import ApiError
from rap_operator.naming import LABEL_ATTEMPT, LABEL_JOB_UID
from rap_operator.resources import JOBS, PODS, RAPJOBS, WATCHED, Resource

Object = dict[str, Any]
Objects = list[Object]
Children = list[tuple[str, Object]]
ObjectKey = tuple[str, str, str]
"""Kind, namespace, name."""
NAMES = {resource.kind: resource for resource in WATCHED}


class FakeCluster:
    """Implements rap_operator.api.Api; `tick` lets the cluster's own controllers work once."""

    def __init__(self, *, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s
        self.objects: dict[ObjectKey, Object] = {}
        self._keys: defaultdict[str, dict[ObjectKey, None]] = defaultdict(dict)
        """Of the objects of a kind, of those that an uid owns, and of the pods of a RAPJob: a thousand jobs are not searched for two."""
        self.log: list[tuple[int, str, str, Object]] = []
        """Resource version, event type, kind, object."""
        self.calls: list[tuple[str, str, str]] = []
        self.violations: list[str] = []
        self.jobs_created: list[str] = []
        self.lost_nodes: set[str] = set()
        self.holds_pods = False
        """Pods stay Pending."""
        self.refuses: dict[str, str] = {}
        """Why a webhook or a quota lets no object of a kind be created, by kind."""
        self._version = 100

    # --- the API

    def list(self, resource: Resource, namespace: str | None, *, query: Mapping[str, str]) -> Object:
        self.calls.append(("list", resource.kind, ""))
        items = [
            copy.deepcopy(item)
            for item in self.of(resource.kind)
            if namespace in (None, item["metadata"]["namespace"]) and _selected(item, query.get("labelSelector", ""))
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    def watch(
        self, resource: Resource, namespace: str | None, *, query: Mapping[str, str], read_timeout_s: float
    ) -> Iterator[Object]:
        del read_timeout_s
        since = int(query["resourceVersion"])
        for version, kind_of_event, kind, item in list(self.log):
            is_wanted = kind == resource.kind and namespace in (None, item["metadata"]["namespace"])
            if version > since and is_wanted and _selected(item, query.get("labelSelector", "")):
                yield {"type": kind_of_event, "object": copy.deepcopy(item)}

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        self.calls.append(("get", resource.kind, name))
        return copy.deepcopy(self._found(resource.kind, namespace, name))

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        self.calls.append(("create", resource.kind, name))
        if resource.kind in self.refuses:
            raise ApiError(403, "Forbidden", self.refuses[resource.kind])
        if (resource.kind, namespace, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{resource.kind} {name} exists")
        if resource is JOBS:
            self.jobs_created.append(name)
        item = copy.deepcopy(body)
        item["metadata"] |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": self._stamp(),
        }
        return self._stored(resource.kind, item, "ADDED")

    def patch(self, resource: Resource, namespace: str, name: str, body: Object, *, subresource: str = "") -> Object:
        self.calls.append(("patch", resource.kind, name))
        item = copy.deepcopy(self._found(resource.kind, namespace, name))
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != item["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        change = {key: value for key, value in body.items() if key != "metadata"}
        if subresource:
            change = {subresource: change.get(subresource, {})}
        before = self._found(resource.kind, namespace, name).get("spec")
        _merge(item, change)
        for part in ("annotations", "labels"):
            _merge(item["metadata"].setdefault(part, {}), (body.get("metadata") or {}).get(part) or {})
        if item.get("spec") != before:
            item["metadata"]["generation"] += 1
        return self._stored(resource.kind, item, "MODIFIED")

    def delete(self, resource: Resource, namespace: str, name: str, options: Object) -> None:
        self.calls.append(("delete", resource.kind, name))
        item = copy.deepcopy(self._found(resource.kind, namespace, name))
        wanted = (options.get("preconditions") or {}).get("uid", item["metadata"]["uid"])
        if wanted != item["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "another object of this name")
        if resource is PODS:
            self._end_pod(item, options.get("gracePeriodSeconds"))
        elif options.get("propagationPolicy") == "Foreground":
            if "deletionTimestamp" not in item["metadata"]:
                item["metadata"]["deletionTimestamp"] = self._stamp()
                self._stored(resource.kind, item, "MODIFIED")
        else:
            self._gone(resource.kind, item)

    # --- what tests do to it

    def of(self, kind: str) -> Objects:
        """All objects of a kind."""
        return [self.objects[key] for key in sorted(self._keys[kind])]

    def change(self, kind: str, item: Object, **parts: Any) -> Object:
        """Lays parts over an object as its own controller would."""
        fresh = copy.deepcopy(self._found(kind, item["metadata"]["namespace"], item["metadata"]["name"]))
        _merge(fresh, parts)
        return self._stored(kind, fresh, "MODIFIED")

    def fail_pod(self, pod: Object, exit_code: int, **ended: Any) -> None:
        """The trainer's container of a pod ends with a code."""
        state = {"terminated": {"exitCode": exit_code, "finishedAt": self._stamp(), **ended}}
        phase = "Failed" if exit_code else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}], "conditions": []}
        self.change("Pod", pod, status=status)

    def disrupt_pod(self, pod: Object, reason: str = "EvictionByEvictionAPI") -> None:
        """A pod is evicted."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": "evicted",
            "lastTransitionTime": self._stamp(),
        }
        changed = self.change("Pod", pod, status={"conditions": [condition]})
        self._end_pod(copy.deepcopy(changed), None)

    # --- its controllers

    def tick(self) -> None:
        """Garbage collector, kubelet and Job controller, once each."""
        self._collect_garbage()
        for pod in self.of("Pod"):
            self._run_pod(pod)
        for job in self.of("Job"):
            self._run_job(job)

    def _collect_garbage(self) -> None:
        alive = {item["metadata"]["uid"] for item in self.objects.values()}
        for (kind, _, _), item in list(self.objects.items()):
            owners = item["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in alive for owner in owners):
                self._remove(kind, item)
        for (kind, _, _), item in list(self.objects.items()):
            if kind in ("Job", "RAPJob") and "deletionTimestamp" in item["metadata"]:
                children = self._children(item)
                for child_kind, child in children:
                    self._remove(child_kind, child)
                if not self._children(item):
                    self._gone(kind, item)

    def _children(self, owner: Object) -> Children:
        return [(key[0], self.objects[key]) for key in self._keys[owner["metadata"]["uid"]]]

    def _remove(self, kind: str, item: Object) -> None:
        if kind == "Pod":
            self._end_pod(copy.deepcopy(item), None)
        else:
            self._gone(kind, item)

    def _end_pod(self, pod: Object, grace_s: int | None) -> None:
        metadata = pod["metadata"]
        if grace_s == 0:
            self._gone("Pod", pod)
            return
        if "deletionTimestamp" not in metadata:
            seconds = pod["spec"].get("terminationGracePeriodSeconds", 30)
            metadata["deletionTimestamp"] = time_text(self.now_s + seconds)
            metadata["deletionGracePeriodSeconds"] = seconds
            self._stored("Pod", pod, "MODIFIED")

    def _run_pod(self, pod: Object) -> None:
        node = pod["spec"].get("nodeName", "")
        if node in self.lost_nodes:
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._gone("Pod", pod)
        elif pod.get("status", {}).get("phase", "Pending") == "Pending" and not self.holds_pods:
            ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
            index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            self.change(
                "Pod",
                pod,
                spec={"nodeName": f"node-{index}"},
                status={"phase": "Running", "conditions": ready, "podIP": "127.0.0.1"},
            )

    def _run_job(self, job: Object) -> None:
        spec, status = job["spec"], job.get("status") or {}
        pods = [pod for kind, pod in self._children(job) if kind == "Pod"]
        true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
        if true & {"Complete", "Failed"} or "deletionTimestamp" in job["metadata"]:
            return
        if spec.get("suspend"):
            for pod in pods:
                self._end_pod(copy.deepcopy(pod), None)
            return
        failed = [pod for pod in pods if pod.get("status", {}).get("phase") == "Failed"]
        if failed or "FailureTarget" in true:
            for pod in pods:
                if pod.get("status", {}).get("phase") in (None, "Pending", "Running"):
                    self._end_pod(copy.deepcopy(pod), None)
            kind = "FailureTarget" if len(pods) > len(failed) else "Failed"
            message = f"Container trainer for pod {failed[0]['metadata']['name']} failed" if failed else "failed"
            condition = {"type": kind, "status": "True", "reason": "PodFailurePolicy", "message": message}
            self.change("Job", job, status={"conditions": [condition]})
            return
        if len(pods) == spec["completions"] and all(p.get("status", {}).get("phase") == "Succeeded" for p in pods):
            done = {
                "type": "Complete",
                "status": "True",
                "reason": "CompletionsReached",
                "message": "all pods succeeded",
            }
            self.change("Job", job, status={"conditions": [done]})
            return
        made = {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in pods}
        for index in range(spec["parallelism"]):
            if str(index) not in made:
                self._make_pod(job, index)

    def _make_pod(self, job: Object, index: int) -> None:
        labels = {
            **job["spec"]["template"]["metadata"]["labels"],
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        self._check_overlap(labels, job["metadata"]["uid"])
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": True}
        name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
        pod = {
            "metadata": {
                "name": name,
                "namespace": job["metadata"]["namespace"],
                "uid": str(uuid.uuid4()),
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": copy.deepcopy(job["spec"]["template"]["spec"]),
        }
        self._stored("Pod", pod, "ADDED")

    def _check_overlap(self, labels: Mapping[str, str], job_uid: str) -> None:
        for key in self._keys[_pods_of(labels[LABEL_JOB_UID])]:
            pod = self.objects[key]
            if pod["metadata"]["ownerReferences"][0]["uid"] != job_uid:
                self.violations.append(
                    f"a pod of attempt {labels[LABEL_ATTEMPT]} begins beside {pod['metadata']['name']}"
                )

    # --- storage

    def _found(self, kind: str, namespace: str, name: str) -> Object:
        item = self.objects.get((kind, namespace, name))
        if item is None:
            raise ApiError(404, "NotFound", f"{kind} {name}")
        return item

    def _stored(self, kind: str, item: Object, event: str) -> Object:
        key = (kind, item["metadata"]["namespace"], item["metadata"]["name"])
        before = self.objects.get(key)
        if event == "MODIFIED" and before is not None and _same(before, item):
            return copy.deepcopy(before)
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = item
        indices = _indices(kind, item)
        for index in () if before is None else _indices(kind, before) - indices:
            self._keys[index].pop(key, None)
        for index in indices:
            self._keys[index][key] = None
        self.log.append((self._version, event, kind, item))  # what is stored is replaced, never changed
        return copy.deepcopy(item)

    def _gone(self, kind: str, item: Object) -> None:
        key = (kind, item["metadata"]["namespace"], item["metadata"]["name"])
        stored = self.objects.pop(key, None)
        if stored is None:
            return
        for index in _indices(kind, stored):
            self._keys[index].pop(key, None)
        self._version += 1
        last = copy.deepcopy(item)
        last["metadata"]["resourceVersion"] = str(self._version)
        self.log.append((self._version, "DELETED", kind, last))

    @property
    def version(self) -> int:
        return self._version

    def _stamp(self) -> str:
        return time_text(self.now_s)


def _indices(kind: str, item: Object) -> set[str]:
    """Where the key of an object is kept."""
    metadata = item["metadata"]
    found = {kind} | {owner["uid"] for owner in metadata.get("ownerReferences") or ()}
    if kind == "Pod":
        found.add(_pods_of((metadata.get("labels") or {}).get(LABEL_JOB_UID, "")))
    return found


def _pods_of(job_uid: str) -> str:
    return f"pods of {job_uid}"


def _same(before: Object, after: Object) -> bool:
    first, second = (
        {**item, "metadata": {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}}
        for item in (before, after)
    )
    return first == second


def _merge(target: Object, change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def _selected(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in selector.split(",") if selector else ():
        key, is_not, value = term.partition("!=")
        if is_not:
            if labels.get(key) == value:
                return False
        else:
            key, _, value = term.partition("=")
            if labels.get(key) != value:
                return False
    return True


__all__ = ["RAPJOBS", "FakeCluster", "Object"]
