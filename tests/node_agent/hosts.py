"""/etc/hosts of a pod: what cluster DNS would answer for headless services, as a pure function.

A name exists only while the service does, selects the pod, and the pod is ready or the service
publishes addresses that are not; so a missing service breaks a test here as it breaks a job there.
"""

from __future__ import annotations

from collections.abc import Iterable

from servers.kube_api import Object

DOMAIN = "cluster.local"
# A name that is not in the hosts file is refused at once: nothing listens there, and no test asks the network.
RESOLVER = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"


def hosts_file(pod: Object, pod_ip: str, *, services: Iterable[Object], pods: Iterable[Object]) -> str:
    """Return the whole file for `pod`, with the names of all headless services of its namespace."""
    namespace = pod["metadata"]["namespace"]
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", own_line(pod, pod_ip)]
    neighbours = [other for other in pods if other["metadata"]["namespace"] == namespace]
    for service in services:
        if service["metadata"]["namespace"] == namespace and service["spec"].get("clusterIP") == "None":
            lines += _service_lines(service, neighbours)
    return "\n".join(lines) + "\n"


def own_line(pod: Object, pod_ip: str) -> str:
    """Return the line the kubelet writes itself: a pod resolves its own name without DNS."""
    name = hostname(pod)
    subdomain = pod["spec"].get("subdomain")
    if not subdomain:
        return f"{pod_ip} {name}"
    return f"{pod_ip} {name}.{subdomain}.{pod['metadata']['namespace']}.svc.{DOMAIN} {name}"


def hostname(pod: Object) -> str:
    """Return the host name of a pod, at most 63 characters as Linux and DNS demand."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


def _service_lines(service: Object, pods: Iterable[Object]) -> list[str]:
    selector = service["spec"].get("selector") or {}
    publish = service["spec"].get("publishNotReadyAddresses", False)
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    lines = []
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        address = pod.get("status", {}).get("podIP")
        chosen = bool(selector) and selector.items() <= labels.items()
        if not (chosen and address and _is_published(pod, publish_not_ready=publish)):
            continue
        if pod["spec"].get("subdomain") == name and pod["spec"].get("hostname"):
            own = f"{pod['spec']['hostname']}.{name}"
            lines.append(f"{address} {_names(own, namespace)}")
        lines.append(f"{address} {_names(name, namespace)}")
    return lines


def _names(name: str, namespace: str) -> str:
    """Return all forms of a name that the search list of a pod's resolv.conf makes equal."""
    return f"{name}.{namespace}.svc.{DOMAIN} {name}.{namespace}.svc {name}.{namespace} {name}"


def _is_published(pod: Object, *, publish_not_ready: bool) -> bool:
    status = pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return False
    if publish_not_ready:
        return True
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    return conditions.get("Ready") == "True"
