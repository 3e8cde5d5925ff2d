"""Many RAPJobs on the real API server with nodes without machines; prints JSON lines.

    PYTHONPATH=operator:trainer:tests python tests/benchmarks/operator_scale.py --jobs 1000 --pods 8

Everything (etcd, API server, controllers, scheduler, fake kubelet, this program and the operator) shares the
machine: each line says how much CPU the operator took, the servers, and this program, of the seconds that passed on
every core. `--kopf` runs the comparison program instead (`pip install --target DIR kopf`, DIR on PYTHONPATH), which
knows the acts `create`, `idle` and `delete`. `--acts` picks some of them; each prints its lines when it is over, or
what it has reached when the time of the whole run (`--limit-seconds`) is. The operator is elected by a Lease, and its
byte code is kept, as in its image.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import psutil
import urllib3
from benchmarks.child_ledger import counted
from benchmarks.cpu_load import Load, cpu_s, seconds_to_rest
from benchmarks.fake_kubelet import FakeKubelet
from benchmarks.one_restart import seconds_to_next_attempt
from operator_world.on_server import install_crd, port_of, read_page
from operator_world.world import rapjob
from rap_operator.naming import SELECTOR
from rap_operator.resources import BUDGETS, CONFIG_MAPS, JOBS, PODS, RAPJOBS, SERVICES
from servers import kubernetes_cluster
from servers.kube_api import KubeApi, KubeError, Object
from servers.processes import free_port
from servers.waiting import wait_until

CHILDREN = (JOBS, PODS, SERVICES, CONFIG_MAPS, BUDGETS)
ROOT = Path(__file__).resolve().parents[2]
# Every job's spec is found stable 60 s after it runs and was seen to make a step: that is written once. Its first window
# for replanning is full two minutes after the stabilisation, which is shorter here than its default, as is the time from one search to the next.
SETTLED_S = 90.0
DELAY_S = 1
REPLANNING = {"stabilizationSeconds": 60, "holdSeconds": 0, "minIntervalSeconds": 60}
ACTS = ("create", "idle", "restart", "replace", "delete")
KOPF_ACTS = ("create", "idle", "delete")


class OutOfTime(Exception):
    """The whole run's time is over."""


class Bench:
    """A cluster, an operator process, and what is measured of them."""

    def __init__(
        self, folder: Path, *, jobs: int, pods: int, is_kopf: bool = False, metrics_port: int = 0, limit_s: float
    ) -> None:
        """`metrics_port`: of one server that answers as every rank; 0: jobs serve no metrics. `limit_s`: of the whole run."""
        kubernetes_cluster.NODE_GRACE_S = 86_400  # the fake nodes do not report
        self._deadline_s = time.monotonic() + limit_s
        self.num_jobs, self.num_pods = jobs, pods
        self.folder, self.is_kopf, self.metrics_port = folder, is_kopf, metrics_port
        self.cluster = kubernetes_cluster.KubernetesCluster(folder)
        self.cluster.start()
        install_crd(self.cluster)
        self.api: KubeApi = self.cluster.api
        self.namespace = self.cluster.create_namespace("scale")
        self.path = RAPJOBS.path(self.namespace)
        self.kubelet = FakeKubelet(self.api, num_nodes=max(jobs * pods // 400, 4))
        self.kubelet.start()
        self.pool = ThreadPoolExecutor(8)
        self.peak_rss_bytes = 0
        self.pod, self._pod_uid = "operator-0", ""
        self._pages: subprocess.Popen[bytes] | None = None
        if metrics_port:
            command = [sys.executable, "-m", "benchmarks.trainer_pages", str(metrics_port)]
            self._pages = subprocess.Popen(command, env=self._environment())
        self._start_operator()

    def _start_operator(self) -> None:
        self._pod_uid = self._placed_pod()
        log = self.folder / "operator.log"
        with log.open("a") as output:
            self.process = subprocess.Popen(self._command(), stderr=output, stdout=output, env=self._environment())
        self.operator = psutil.Process(self.process.pid)
        self.port = 0 if self.is_kopf else port_of(log)
        threading.Thread(target=self._watch_memory, daemon=True).start()

    def _environment(self) -> dict[str, str]:
        paths = [*(str(ROOT / name) for name in ("operator", "trainer", "tests")), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": ":".join(paths),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "POD_NAME": self.pod,
            "POD_NAMESPACE": self.namespace,
            "POD_UID": self._pod_uid,
        }

    def _placed_pod(self) -> str:
        """UID of the operator's pod: on no node, so that it stays as it is and goes when it is told to."""
        path = f"{PODS.path(self.namespace)}/{self.pod}"
        spec = {"schedulerName": "nobody", "containers": [{"name": "operator", "image": "operator"}]}
        found = self.api.find(path)
        if found is None:
            found = self.api.create(PODS.path(self.namespace), {"metadata": {"name": self.pod}, "spec": spec})
        uid: str = found["metadata"]["uid"]
        return uid

    def _command(self) -> list[str]:
        if self.is_kopf:
            program = str(ROOT / "tests" / "benchmarks" / "kopf_comparison.py")
            return [sys.executable, "-m", "kopf", "run", "--namespace", self.namespace, program]
        options = ("--metrics-port", "0", "--namespaces", self.namespace, "--lease-namespace", self.namespace)
        return [
            sys.executable,
            "-m",
            "benchmarks.measured_operator",
            str(self.folder / "passes.json"),
            *options,
            "--kubeconfig",
            str(self.cluster.kubeconfig),
        ]

    def _watch_memory(self) -> None:
        while self.process.poll() is None:
            try:
                self.peak_rss_bytes = max(self.peak_rss_bytes, self.operator.memory_info().rss)
            except psutil.NoSuchProcess:
                return
            time.sleep(0.5)

    def stop(self) -> None:
        if self._pages is not None:
            self._pages.kill()
        self.process.kill()
        self.kubelet.stop()
        self.cluster.stop()

    def items(self, path: str, **query: str) -> Iterator[Object]:
        """A whole list, in pages."""
        query["limit"] = "500"
        while True:
            page = self.api.get(path, **query)
            yield from page["items"]
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    def count(self, condition: Callable[[Object], bool]) -> int:
        return sum(condition(item.get("status") or {}) for item in self.items(self.path))

    def _count_if_answered(self, condition: Callable[[Object], bool]) -> int:
        try:
            return self.count(condition)
        except urllib3.exceptions.HTTPError:  # a server as busy as this answers later
            return 0

    def until(self, wanted: int, condition: Callable[[Object], bool], what: str, since: Load) -> float:
        """Seconds until so many jobs fulfil a condition; says how many do, and ends the run, when its time is over."""
        begun_s = time.monotonic()
        while (found := self._count_if_answered(condition)) < wanted:
            if time.monotonic() > self._deadline_s:
                passed_s = time.monotonic() - begun_s
                self.say(f"out of time: {what}", reached=found, seconds=passed_s, **self.cpu_s().since(since))
                raise OutOfTime
            time.sleep(max(self.num_jobs / 400, 0.5))  # reading a thousand statuses takes the server 0.1 s
        return time.monotonic() - begun_s

    def requests(self) -> int:
        page = read_page(self.port, "/metrics") if self.port else ""
        pattern = r'^rap_operator_api_requests_total\{code="(\d+)",verb="(\w+)"\} ([\d.e+]+)$'
        return int(sum(float(n) for _, verb, n in re.findall(pattern, page, re.MULTILINE) if verb != "watch"))

    def passes(self) -> dict[str, float]:
        """Times of the operator's passes since the last look; nothing for kopf, which keeps none."""
        return {} if self.is_kopf else self._measured()["passes"]

    def _measured(self) -> dict[str, dict[str, float]]:
        found = self.folder / "passes.json"
        found.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_until(found.exists, limit_s=60, what="the passes' times")
        return cast("dict[str, dict[str, float]]", json.loads(found.read_text()))

    def cpu_s(self) -> Load:
        """CPU seconds so far: of the operator, of the servers, of this program."""
        servers = sum(cpu_s(psutil.Process(server.pid)) for server in self.cluster.servers)
        return Load(operator=cpu_s(self.operator), servers=servers, program=cpu_s(psutil.Process()))

    def say(self, what: str, **figures: float) -> None:
        line = {
            "what": what,
            "operator": "kopf" if self.is_kopf else "rap",
            "jobs": self.num_jobs,
            "pods": self.num_jobs * self.num_pods,
            **{key: round(value, 3) for key, value in figures.items()},
            "operator_rss_mib": round(self.operator.memory_info().rss / 2**20, 1),
        }
        print(json.dumps(line), flush=True)

    def ledger(self, what: str) -> None:
        """What is there of all children: jobs with two Jobs, pods of two attempts, or children of nobody would be faults."""
        uids = {item["metadata"]["uid"] for item in self.items(self.path)}
        children = {
            kind: [item["metadata"]["labels"] for item in self.items(kind.path(self.namespace), labelSelector=SELECTOR)]
            for kind in CHILDREN
        }
        found = counted(children, uids)
        self.say(f"ledger: {what}", **{f"there_{name}": number for name, number in found.items()})

    # --- the load

    def run(self, acts: Sequence[str], *, idle_s: float) -> None:
        """Some of the acts, in their order; ends early when the time of the whole run is over."""
        doing = {"idle": lambda: self.idle(idle_s), "restart": self.restart, "replace": self.replace}
        try:
            self.create()
            for act, do in {**doing, "delete": self.delete}.items():
                if act in acts:
                    do()
        except OutOfTime:
            pass
        print(json.dumps({"what": "peak memory", "mib": round(self.peak_rss_bytes / 2**20, 1)}), flush=True)

    def create(self) -> None:
        before_s, before = self.cpu_s(), self.requests()
        begun_s = time.monotonic()

        def make(index: int) -> None:
            trainer = {"nodes": self.num_pods, "metricsPort": self.metrics_port}
            job = rapjob(trainer=trainer, restartPolicy={"delaySeconds": DELAY_S}, replanning=REPLANNING)
            job["metadata"] = {"name": f"job-{index}", "namespace": self.namespace}
            self.api.create(self.path, job)

        list(self.pool.map(make, range(self.num_jobs)))
        created_s = time.monotonic() - begun_s
        self.until(self.num_jobs, lambda s: bool(s.get("attempt")), "first reconcile of all", before_s)
        first_s = time.monotonic() - begun_s
        self.say("first reconcile of all", seconds=first_s, creating_took_s=created_s, **self.cpu_s().since(before_s))
        self.until(self.num_jobs, lambda s: s.get("phase") == "Running", "all running", before_s)
        self.say(
            "all running",
            seconds=time.monotonic() - begun_s,
            **({} if self.is_kopf else {"requests_per_job": (self.requests() - before) / self.num_jobs}),
            **self.cpu_s().since(before_s),
            **self.passes(),
        )
        self.ledger("all running")

    def idle(self, seconds: float) -> None:
        """Nothing happens; Prometheus' scrape of the operator, twice a minute, is this program's reading of its page."""
        settling_s = self._settled()
        self.passes()
        before_s, begun_s, before = self.cpu_s(), time.monotonic(), self.requests()
        while time.monotonic() - begun_s < seconds:
            time.sleep(min(30.0, seconds))
            after = self.requests()
        passed_s = time.monotonic() - begun_s
        self.say(
            "idle, metrics read" if self.metrics_port else "idle",
            **({} if self.is_kopf else {"requests_per_minute": (after - before) / passed_s * 60}),
            settling_took_s=settling_s,
            cpu_percent=100 * (self.cpu_s().operator - before_s.operator) / passed_s,
            **self.passes(),
        )

    def _settled(self) -> float:
        """Seconds until every job's plan was searched twice in vain, where metrics are read: from then on it is once an hour."""
        time.sleep(SETTLED_S)
        if not self.metrics_port or self.is_kopf:
            return SETTLED_S

        def is_settled(status: Object) -> bool:
            told, searched = status.get("replans") or [{}], (status.get("replanning") or {}).get("searchedAt")
            return bool(told[0].get("reason") == "SearchFailed" and searched != told[0].get("first"))

        return SETTLED_S + self.until(self.num_jobs, is_settled, "plans searched twice", self.cpu_s())

    def restart(self) -> None:
        num = max(self.num_jobs // 10, 2)
        pods = self.api.items(
            f"/api/v1/namespaces/{self.namespace}/pods", labelSelector="batch.kubernetes.io/job-completion-index=0"
        )[:num]
        took_s = seconds_to_next_attempt(self.api, self.kubelet, pods[0])
        self.say("one restarted", death_to_next_job_s=took_s, of_this_delay_s=DELAY_S)
        before_s = self.cpu_s()
        self.passes()
        begun_s = time.monotonic()
        list(self.pool.map(lambda pod: self.kubelet.fail(pod, 1), pods[1:]))

        def is_back(status: Object) -> bool:
            return (status.get("attempt") or {}).get("number") == 2 and status.get("phase") == "Running"

        self.until(num, is_back, "a tenth restarted", before_s)
        took_s = time.monotonic() - begun_s
        self.say("a tenth restarted", seconds=took_s, **self.cpu_s().since(before_s), **self.passes())
        self.ledger("a tenth restarted")

    def replace(self) -> None:
        """The operator is ended and started again, in three ways."""
        self.replace_operator("killed, started in the same pod", signal.SIGKILL, pod=self.pod)
        self.replace_operator("stopped, started in another pod", signal.SIGTERM, pod="operator-1")
        self.replace_operator(
            "killed with its pod, started in another", signal.SIGKILL, pod="operator-2", is_pod_gone=True
        )

    def replace_operator(self, what: str, how: signal.Signals, *, pod: str, is_pod_gone: bool = False) -> None:
        """Ends the operator, at rest, changes a job, starts it in a pod of a name: when the changed job has its pass, when all have."""
        resting_s = seconds_to_rest(self.cpu_s, until_s=self._deadline_s)
        begun_s = time.monotonic()
        self.process.send_signal(how)
        self.process.wait()
        if is_pod_gone:
            self.api.delete(f"{PODS.path(self.namespace)}/{self.pod}")
        ended_s = time.monotonic()
        (self.folder / "operator.log").write_text("")
        self.pod = pod
        path = f"{self.path}/job-0"
        stall_s = self.api.get(path)["spec"].get("stallSeconds", 600)
        generation = self.api.patch(path, {"spec": {"stallSeconds": stall_s + 1}})["metadata"]["generation"]
        started_s = time.monotonic()
        self._start_operator()
        while self.api.get(path)["status"]["observedGeneration"] != generation:
            time.sleep(0.05)
        changed_s = time.monotonic() - started_s
        while (start := self._measured()["start"])["jobs"] < self.num_jobs:
            time.sleep(0.5)
        self.say(what, resting_took_s=resting_s, ending_took_s=ended_s - begun_s, changed_job_s=changed_s, **start)

    def delete(self) -> None:
        begun_s = time.monotonic()
        before_s = self.cpu_s()

        def remove(index: int) -> None:
            try:
                self.api.delete(f"{self.path}/job-{index}")
            except KubeError as refused:
                if refused.status != 404:
                    raise

        list(self.pool.map(remove, range(self.num_jobs)))
        for kind in CHILDREN:
            while self.api.get(kind.path(self.namespace), limit="1", labelSelector=SELECTOR)["items"]:
                if time.monotonic() > self._deadline_s:
                    self.say("out of time: all deleted", seconds=time.monotonic() - begun_s)
                    raise OutOfTime
                time.sleep(1.0)
        self.say("all deleted, nothing left", seconds=time.monotonic() - begun_s, **self.cpu_s().since(before_s))
        self.ledger("all deleted")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--pods", type=int, default=8)
    options.add_argument("--idle-seconds", type=float, default=60)
    options.add_argument("--kopf", action="store_true", help="the comparison program; needs kopf on PYTHONPATH")
    options.add_argument("--metrics", action="store_true", help="every rank serves metrics, which the operator reads")
    options.add_argument("--acts", default="", help=f"some of {','.join(ACTS)}; create always comes first")
    options.add_argument("--limit-seconds", type=float, default=7200, help="of the whole run")
    given = options.parse_args()
    known = KOPF_ACTS if given.kopf else ACTS
    acts = given.acts.split(",") if given.acts else list(known)
    if unknown := set(acts) - set(known):
        options.error(f"--acts: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    port = free_port() if given.metrics else 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder),
            jobs=given.jobs,
            pods=given.pods,
            is_kopf=given.kopf,
            metrics_port=port,
            limit_s=given.limit_seconds,
        )
        try:
            bench.run(acts, idle_s=given.idle_seconds)
        finally:
            bench.stop()


if __name__ == "__main__":
    main()
