"""A thousand jobs that all want another plan at once, on the real API server, with one operator process. Prints JSON lines.

    PYTHONPATH=operator:trainer:tests python tests/benchmarks/replan_scale.py --jobs 1000

Everything shares the machine: etcd, API server, controllers, scheduler, kubelets and ranks without machines (`replanning_pages.py`), this
program, the operator, and the process beside it in which plans are searched. Every job's lists are long from its start and its own
plan is a bad one, so as soon as a full window is in, all are searched for, offered a better plan, and wait for one of the places to
switch. Spec and options of the operator are the defaults but for what is waited for (POLICY). The run ends after --seconds, wherever
it is: a line every half minute says how far, the last one how long passes took since all jobs ran. A pass counts with its waiting for the API server and for a core.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from benchmarks.fake_kubelet import FakeKubelet
from benchmarks.replanning_pages import DELAY_S, address_of
from operator_world.on_server import install_crd, port_of, read_page
from operator_world.world import rapjob
from rap_contract.pod import ENV_PROFILE_FILE
from rap_operator.naming import LABEL_JOB, SELECTOR
from rap_operator.replanning.jobs import SWITCHING
from rap_operator.replanning.plan_config import PLAN_KEY
from rap_operator.resources import CONFIG_MAPS, RAPJOBS
from servers import kubernetes_cluster
from servers.kube_api import Object
from servers.processes import free_port
from servers.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
POLICY = {"stabilizationSeconds": 0, "holdSeconds": 0, "minIntervalSeconds": 0, "plausibleRatio": 0}
WINDOW_S, INTERVAL_S = 120, 30
"""The defaults; a shorter window, to try this program out, has as many readings."""
LIMIT = 10
"""Jobs that switch at a time, the operator's default."""
SAID_EVERY_S = 30.0
WORKER = "rap_operator.replanning.worker"
STAGES = {"LimitReached": "offered", "Applying": "offered", "Switched": "switched", "Confirmed": "confirmed"}
"""How far a decision in a job's history shows that it has come, by outcome or reason."""
REACHED = ("running", *dict.fromkeys(STAGES.values()))


def wide() -> Object:
    """Columns and features of a Criteo job: a search has something to do."""
    scalars, lists = "int_{0..12}", "cat_{0..25}"
    dense = {"columns": [scalars], "ops": [{"fillNull": {"value": 0}}, {"logit": {"eps": 1e-5}}]}
    hashed = [{"fillNull": {"value": 0}}, {"sigridHash": {"salt": 0}}, {"firstx": {"count": 1}}]
    sparse = {"columns": [lists], "ops": hashed, "table": {"rows": 1000, "dim": 16}}
    columns = {"label": "int32", scalars: "float32", lists: "list<int64>"}
    return {"columns": columns, "features": [dense, sparse]}


class Kubelet(FakeKubelet):
    """Gives each job's pods an address of their own."""

    def _status(self, pod: Object, status: Any) -> None:
        number = int(pod["metadata"]["labels"][LABEL_JOB].partition("-")[2])
        super()._status(pod, {**status, "podIP": address_of(number)})


class Bench:
    """A cluster, jobs, an operator, and what is seen of them."""

    def __init__(self, folder: Path, *, jobs: int, pods: int, window_s: int) -> None:
        kubernetes_cluster.NODE_GRACE_S = 86_400  # the fake nodes do not report
        self.num_jobs, self._folder, self._pods = jobs, folder, pods
        self._states: dict[str, str] = {}
        self._reached: dict[str, set[str]] = {what: set() for what in REACHED}
        self.most_switching = 0
        self._stopping = threading.Event()
        self.cluster = kubernetes_cluster.KubernetesCluster(folder)
        self.cluster.start()
        install_crd(self.cluster)
        self.api = self.cluster.api
        self.namespace = self.cluster.create_namespace("scale")
        self._kubelet = Kubelet(self.api, num_nodes=max(jobs * pods // 400, 4))
        self._kubelet.start()
        paths = ":".join(str(ROOT / name) for name in ("operator", "trainer", "tests"))
        environment = {**os.environ, "PYTHONPATH": paths, ENV_PROFILE_FILE: str(folder / "profile.json")}
        self._port = free_port()
        trainer = {"nodes": pods, "metricsPort": self._port}
        replanning = {**POLICY, "windowSeconds": window_s}
        self._job = rapjob(trainer=trainer, restartPolicy={"delaySeconds": 1}, replanning=replanning, **wide())
        pages = [sys.executable, "-m", "benchmarks.replanning_pages", str(self._port), json.dumps(self._job)]
        self._ranks = subprocess.Popen(pages, env=environment, stdin=subprocess.PIPE, text=True)
        log = folder / "operator.log"
        command = [sys.executable, "-m", "benchmarks.timed_operator", str(folder / "passes")]
        command += ["--metrics-port", "0", "--namespaces", self.namespace, "--no-lease"]
        command += ["--scrape-interval-seconds", str(INTERVAL_S * window_s / WINDOW_S)]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--kubeconfig", str(self.cluster.kubeconfig)], stderr=output, stdout=output, env=environment
            )
        self._page_port = port_of(log)
        for target in (self._follow_jobs, self._follow_plans):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        self._stopping.set()
        self._process.kill()
        self._process.wait()
        self._ranks.kill()
        self._ranks.wait()
        self._kubelet.stop()
        self.cluster.stop()

    def create(self) -> None:
        """All jobs; returns when every one runs."""
        path = RAPJOBS.path(self.namespace)

        def make(index: int) -> None:
            self.api.create(path, {**self._job, "metadata": {"name": f"job-{index}", "namespace": self.namespace}})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, range(self.num_jobs)))
        wait_until(
            lambda: self.reached()["running"] >= self.num_jobs, limit_s=1800, what="all jobs to run", every_s=0.5
        )

    # -- what is seen

    def _follow_jobs(self) -> None:
        def seen(item: Object) -> None:
            status, name = item.get("status") or {}, item["metadata"]["name"]
            if status.get("phase") == "Running":
                self._reached["running"].add(name)
            for record in status.get("replans") or ():
                what = STAGES.get(record["reason"]) or STAGES.get(record["outcome"])
                if what:
                    self._reached[what].add(name)
            self._states[name] = ((status.get("replanning") or {}).get("change") or {}).get("state", "")
            switching = sum(state in SWITCHING for state in self._states.values())
            self.most_switching = max(self.most_switching, switching)

        self.api.follow(RAPJOBS.path(self.namespace), seen, stopping=self._stopping)

    def _follow_plans(self) -> None:
        pipe = self._ranks.stdin
        assert pipe is not None

        def seen(item: Object) -> None:
            text = (item.get("data") or {}).get(PLAN_KEY)
            if text:
                number = int(item["metadata"]["labels"][LABEL_JOB].partition("-")[2])
                pipe.write(json.dumps([number, text]) + "\n")
                pipe.flush()

        self.api.follow(CONFIG_MAPS.path(self.namespace), seen, stopping=self._stopping, selector=SELECTOR)

    def reached(self) -> dict[str, int]:
        """How many jobs have come how far."""
        return {what: len(names) for what, names in self._reached.items()}

    def outcomes(self) -> dict[str, int]:
        """Decisions so far, by outcome and reason."""
        page = read_page(self._page_port, "/metrics")
        found = re.findall(r'^rap_operator_replans_total\{outcome="(\w+)",reason="(\w+)"\} ([\d.e+]+)$', page, re.M)
        return {f"{outcome}/{reason}": int(float(number)) for outcome, reason, number in found}

    def requests(self) -> int:
        """To the API server so far, watches apart."""
        page = read_page(self._page_port, "/metrics")
        found = re.findall(r'^rap_operator_api_requests_total\{code="\d+",verb="(\w+)"\} ([\d.e+]+)$', page, re.M)
        return int(sum(float(number) for verb, number in found if verb != "watch"))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far, by whom."""
        operator = psutil.Process(self._process.pid)
        workers = [child for child in operator.children() if WORKER in child.cmdline()]
        return {
            "operator": _cpu_s(operator),
            "planner": sum(_cpu_s(worker) for worker in workers),
            "servers": sum(_cpu_s(psutil.Process(server.pid)) for server in self.cluster.servers),
            "ranks": _cpu_s(psutil.Process(self._ranks.pid)),
            "program": _cpu_s(psutil.Process()),
        }

    def passes(self, since_s: float) -> list[tuple[float, float]]:
        """Seconds of each pass that ended after a moment, and its thread's CPU seconds."""
        lines = [line.split() for line in (self._folder / "passes").read_text().splitlines()]
        return [(float(line[1]), float(line[2])) for line in lines if len(line) == 3 and float(line[0]) >= since_s]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _say(case: str, **figures: Any) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def _times(passes: list[tuple[float, float]]) -> dict[str, float]:
    if not passes:
        return {"passes": 0}
    walls, cpus = sorted(1e3 * wall for wall, _ in passes), sorted(1e3 * cpu for _, cpu in passes)
    at = int(0.99 * len(passes))
    return {
        "passes": len(passes),
        "wall_p50_ms": walls[len(walls) // 2],
        "wall_p99_ms": walls[at],
        "wall_max_ms": walls[-1],
        "cpu_p50_ms": cpus[len(cpus) // 2],
        "cpu_p99_ms": cpus[at],
    }


def measured(bench: Bench, *, seconds: float) -> None:
    """Begins when all jobs run."""
    begun_s, before, requests = time.monotonic(), bench.cpu_s(), bench.requests()
    said_s = begun_s
    while time.monotonic() - begun_s < seconds:
        time.sleep(min(SAID_EVERY_S, max(begun_s + seconds - time.monotonic(), 0.0)))
        passed_s, times = time.monotonic() - begun_s, _times(bench.passes(said_s))
        _say("so far", after_s=passed_s, most_switching=bench.most_switching, **bench.reached(), **times)
        said_s = time.monotonic()
    after = bench.cpu_s()
    _say(
        "replan_scale",
        jobs=bench.num_jobs,
        limit=LIMIT,
        most_switching=bench.most_switching,
        is_limit_held=bench.most_switching <= LIMIT,
        seconds=time.monotonic() - begun_s,
        ranks_take_a_plan_after_s=DELAY_S,
        **bench.reached(),
        decisions=bench.outcomes(),
        requests=bench.requests() - requests,
        load=os.getloadavg()[0],
        **_times(bench.passes(begun_s)),
        **{f"{name}_cpu_s": after[name] - before[name] for name in after},
    )


def main() -> None:
    """Runs once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2, help="of each job")
    parser.add_argument("--seconds", type=float, default=420.0, help="after all jobs run")
    parser.add_argument("--window-seconds", type=int, default=WINDOW_S)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), jobs=options.jobs, pods=options.pods, window_s=options.window_seconds)
        try:
            begun_s = time.monotonic()
            bench.create()
            _say("all run", jobs=options.jobs, pods=options.jobs * options.pods, seconds=time.monotonic() - begun_s)
            measured(bench, seconds=options.seconds)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
