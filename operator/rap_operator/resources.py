"""The kinds of objects the operator deals with, and their paths. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from rap_contract.job import GROUP, KIND, VERSION


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A kind of namespaced objects."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """URL path of a collection or an object; no namespace means all of them."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        parts = [root + place, self.plural, quote(name, safe=""), subresource]
        return "/".join(part for part in parts if part)


RAPJOBS = Resource(kind=KIND, plural="rapjobs", group=GROUP, version=VERSION)
JOBS = Resource(kind="Job", plural="jobs", group="batch")
PODS = Resource(kind="Pod", plural="pods")
SERVICES = Resource(kind="Service", plural="services")
CONFIG_MAPS = Resource(kind="ConfigMap", plural="configmaps")
BUDGETS = Resource(kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy")
EVENTS = Resource(kind="Event", plural="events")
LEASES = Resource(kind="Lease", plural="leases", group="coordination.k8s.io")

WATCHED = (RAPJOBS, JOBS, PODS, SERVICES, CONFIG_MAPS, BUDGETS)
