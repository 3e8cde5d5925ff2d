"""Whom to ask: the ranks of every running job whose plan may change, from the cache. Pure over the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rap_contract.operations import Replanning
from rap_contract.pod import PLANNING_PATH

from rap_operator.cache import Cache, Key, RapJobView
from rap_operator.replanning.window import kept_s
from rap_operator.targets import DEFAULT_PORT
from rap_operator.views import PodView

DEFAULT = Replanning()
MAX_RANKS = 4
"""Asked of a job: all ranks make the same steps, so more would say the same; the first always is."""
SWITCHING = ("Applying", "Reverting")
"""States of a change that hold a place: the ranks are asked to switch."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Where a rank's metrics are."""

    rank: int
    url: str
    pod: str


@dataclass(frozen=True, kw_only=True)
class JobRanks:
    """A running job, and the ranks of it that are asked."""

    key: Key
    uid: str
    namespace: str
    attempt: int
    num_ranks: int
    ranks: tuple[Rank, ...]
    is_switching: bool = False
    """The ranks are asked to take another plan."""
    keep_s: float = math.inf
    """What was read longer ago decides nothing any more."""

    @property
    def planning_url(self) -> str:
        """Where the first rank says what a search needs."""
        return self.ranks[0].url.removesuffix("/metrics") + PLANNING_PATH


def replannable(cache: Cache) -> Iterator[JobRanks]:
    """Every running job that is not left alone."""
    for view in cache.rapjobs():
        found = ranks_of(view, cache.pods(view.meta.uid))
        if found is not None:
            yield found


def switching(cache: Cache) -> Iterator[JobRanks]:
    """Those of them whose ranks are asked to take another plan."""
    for view in cache.rapjobs():
        if is_switching(view):
            found = ranks_of(view, cache.pods(view.meta.uid))
            if found is not None:
                yield found


def is_switching(view: RapJobView) -> bool:
    """Whether the job holds one of the places to switch."""
    change = ((view.item.get("status") or {}).get("replanning") or {}).get("change") or {}
    return change.get("state") in SWITCHING


def ranks_of(view: RapJobView, pods: tuple[PodView, ...]) -> JobRanks | None:
    """The ranks of a job to ask; None unless all its pods run and it may be replanned."""
    spec, status = view.item.get("spec") or {}, view.item.get("status") or {}
    attempt = status.get("attempt") or {}
    trainer = spec.get("trainer") or {}
    port = trainer.get("metricsPort", DEFAULT_PORT)
    mode = (spec.get("replanning") or {}).get("mode", "Auto")
    nodes = attempt.get("nodes", 0)
    if attempt.get("state") != "Created" or mode == "Off" or not isinstance(port, int) or not port:
        return None
    running = {pod.index: pod for pod in pods if pod.attempt == attempt.get("number") and pod.phase == "Running"}
    if len(running) < nodes or not nodes or any(not pod.ip for pod in running.values()):
        return None
    per_node = int(trainer.get("gpusPerNode") or 0) or int(trainer.get("processesPerNode") or 1)
    scheme = "https" if trainer.get("metricsSecretName") else "http"
    total = nodes * per_node
    chosen = sorted({number * total // min(MAX_RANKS, total) for number in range(min(MAX_RANKS, total))})
    ranks = []
    for rank in chosen:
        pod = running.get(rank // per_node)
        if pod is None:
            return None
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"{scheme}://{host}:{port + rank % per_node}/metrics"
        ranks.append(Rank(rank=rank, url=url, pod=pod.meta.name))
    return JobRanks(
        key=(view.meta.namespace, view.meta.name),
        uid=view.meta.uid,
        namespace=view.meta.namespace,
        attempt=int(attempt["number"]),
        num_ranks=total,
        ranks=tuple(ranks),
        is_switching=is_switching(view),
        keep_s=_keep_s(spec.get("replanning") or {}),
    )


def _keep_s(policy: Mapping[str, Any]) -> float:
    """`kept_s` of a job's policy as it was written; what is missing or no number has its default."""

    def seconds(name: str, default: int) -> int:
        given = policy.get(name)
        return given if isinstance(given, int) else default

    return kept_s(
        stabilization_s=seconds("stabilizationSeconds", DEFAULT.stabilization_seconds),
        window_s=seconds("windowSeconds", DEFAULT.window_seconds),
        confirm_s=seconds("confirmSeconds", DEFAULT.confirm_seconds),
    )
