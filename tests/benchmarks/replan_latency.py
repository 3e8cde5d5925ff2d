"""From the first long list to a new plan in force on all ranks, stage by stage. Prints JSON lines.

    PYTHONPATH=operator:trainer:tests python tests/benchmarks/replan_latency.py --rounds 3

The job, the producer and the servers of `tests/replanning/test_replanning_end_to_end.py`: a real API server, two nodes of processes, an
operator that reads the ranks once a second. Lists become three times as long, and short again in the next round; each round says when (in
seconds after the first file of other lists) what was seen:

- `in_metrics`: a rank's mean list length has left the old one by a tenth; `metrics_settled`: it is within a twentieth of the new one.
- `searching`: the operator has a full window of such data and asks for a plan; `decided`: the status names it.
- `written`: the plan's ConfigMap holds it; `in_force`: every rank reports it. Of that the ranks' own time from seeing
  the file to having switched is `ranks_took`; the rest is the nodes' projection and the ranks' looking (twice a second).
- `confirmed_by_operator`: the operator has read it from all ranks.

`goal_s` is a window and ten seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import uuid
from pathlib import Path

from node_agent.agent import NodeAgent
from node_agent.nodes import NodeSpec
from operator_world.on_server import OnServer, install_crd
from rap_contract.metrics import MEAN_LIST_LENGTH, PLAN_SWITCH_SECONDS
from rap_operator.naming import SELECTOR
from rap_operator.replanning.plan_config import in_force
from replanning.drifting_job import LONG, SHORT, WINDOW_S, Producer, job, pages, plans_in, profile_into, samples
from servers.kube_api import Object
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until

GOAL_S = WINDOW_S + 10.0
EVERY_S = 0.2
LIMIT_S = 240.0


class Seen:
    """When what was first seen, in seconds after the drift began."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self.stages: dict[str, float] = {}

    def see(self, what: str) -> None:
        self.stages.setdefault(what, round(time.monotonic() - self.begun_s, 2))


class Watcher:
    """Follows the job and its plan's ConfigMap on the server."""

    def __init__(self, on_server: OnServer) -> None:
        self._on_server, self._stopping = on_server, threading.Event()
        self.seen = Seen()
        self.before = ""
        """The plan in force when the drift began."""
        configs = f"/api/v1/namespaces/{on_server.namespace}/configmaps"
        for path, see, selector in ((on_server.path, self._job, ""), (configs, self._config, SELECTOR)):
            followed = {"stopping": self._stopping, "selector": selector}
            threading.Thread(target=on_server.api.follow, args=(path, see), kwargs=followed, daemon=True).start()

    def close(self) -> None:
        self._stopping.set()

    def _job(self, item: Object) -> None:
        status = item.get("status") or {}
        change = (status.get("replanning") or {}).get("change") or {}
        reasons = {each["reason"] for each in status.get("conditions") or () if each["type"] == "Replanning"}
        if "Searching" in reasons:
            self.seen.see("searching")
        if change.get("plan", self.before) != self.before:
            self.seen.see("decided")
            if change["state"] == "Verifying":
                self.seen.see("confirmed_by_operator")

    def _config(self, item: Object) -> None:
        plan = in_force(item)
        if plan and plan != self.before:
            self.seen.see("written")


def mean_length(page: str) -> float:
    """The longest of the groups' mean list lengths."""
    return max((value for _, value in samples(page, MEAN_LIST_LENGTH.name)), default=0.0)


def switch_s(page: str) -> float:
    """What all switches of a rank took, from seeing the file on."""
    return sum(value for _, value in samples(page, f"{PLAN_SWITCH_SECONDS.name}_sum"))


def drifted(on_server: OnServer, producer: Producer, watcher: Watcher, *, length: int) -> Seen:
    """One drift, until all ranks run another plan and the operator knows it."""
    before_length = producer.length
    now = pages(on_server)
    plans, took_s = set(plans_in(now)), [switch_s(page) for page in now]
    watcher.before = next(iter(plans - {"none"}), "")
    seen = watcher.seen = Seen()
    producer.length = length
    while not {"in_force", "confirmed_by_operator"} <= seen.stages.keys():
        assert time.monotonic() - seen.begun_s < LIMIT_S, json.dumps([seen.stages, on_server.status()])
        now = pages(on_server)
        found = mean_length(now[0])
        if abs(found / before_length - 1) > 0.1:
            seen.see("in_metrics")
        if abs(found / length - 1) < 0.05:
            seen.see("metrics_settled")
        reported = set(plans_in(now))
        if len(reported) == 1 and not reported & (plans | {"none"}):
            seen.see("in_force")
            took = max(switch_s(page) - before_s for page, before_s in zip(now, took_s, strict=True))
            seen.stages.setdefault("ranks_took", round(took, 2))
        time.sleep(EVERY_S)
    return seen


def main() -> None:
    """Some drifts of one job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # checkpoints may still be written
        folder = Path(name)
        shared = folder / "shared"
        profile_into(shared)
        cluster = KubernetesCluster(folder / "kubernetes")
        cluster.start()
        install_crd(cluster)
        nodes = [NodeSpec(name=f"node-{uuid.uuid4().hex[:6]}", gpus=4) for _ in range(2)]
        agent = NodeAgent(cluster.api, folder / "nodes", nodes=nodes)
        agent.start()
        on_server = OnServer(cluster, cluster.create_namespace())
        try:
            with Producer(shared / "events") as producer:
                on_server.operator_process("--no-lease", "--scrape-interval-seconds", "1", log=folder / "operator.log")
                on_server.create(job(shared))
                on_server.wait_phase("Running", limit_s=240)
                watcher = Watcher(on_server)
                _steady(on_server)
                for number in range(options.rounds):
                    seen = drifted(on_server, producer, watcher, length=SHORT if number % 2 else LONG)
                    total_s = seen.stages["in_force"]
                    within = {"window_s": WINDOW_S, "goal_s": GOAL_S, "is_within": total_s <= GOAL_S}
                    print(
                        json.dumps(
                            {"case": "drift", "round": number, **seen.stages, **within, "load": os.getloadavg()[0]}
                        ),
                        flush=True,
                    )
                    wait_until(
                        lambda: _change(on_server) == "", limit_s=LIMIT_S, what="the plan to be confirmed", every_s=0.5
                    )
                    _steady(on_server)
                watcher.close()
        finally:
            on_server.close()
            agent.stop()
            cluster.stop()


def _change(on_server: OnServer) -> str:
    return str(((on_server.status().get("replanning") or {}).get("change") or {}).get("state", ""))


def _steady(on_server: OnServer) -> None:
    def is_steady() -> bool:
        conditions = on_server.status().get("conditions") or ()
        return any(each["type"] == "Replanning" and each["reason"] == "Steady" for each in conditions)

    wait_until(is_steady, limit_s=LIMIT_S, what="the job to be judged and steady", every_s=0.5)


if __name__ == "__main__":
    main()
