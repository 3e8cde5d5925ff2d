"""A whole cluster on this machine, a RAPJob applied, trained on two nodes, a pod killed, done.

    PYTHONPATH=operator:trainer:tests python tests/demo/cluster_demo.py

Only what a user could type (`kubectl apply`, `kubectl get`, `rap produce`, `rap-operator`); the machine stands in
for a cluster through the test servers and the process node agent. Needs root for the agent's mount namespaces.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from node_agent.agent import NodeAgent
from node_agent.nodes import NodeSpec
from operator_world.on_server import ROOT, install_crd, port_of
from servers.kubernetes_cluster import KubernetesCluster
from servers.waiting import wait_until

ROWS, ROWS_PER_SECOND = 60_000, 2_000
NAMESPACE = "ads"
JOB = """\
apiVersion: rap.dev/v1alpha1
kind: RAPJob
metadata: {{name: clicks, namespace: ads}}
spec:
  source:
    files: {{path: {folder}/events, format: parquet, follow: true, eventTime: {{column: ts}}}}
  columns: {{label: int32, "int_{{0..12}}": float32, "cat_{{0..25}}": list<int64>}}
  label: label
  features:
  - {{columns: ["int_{{0..12}}"], ops: [{{fillNull: {{value: 0}}}}, {{log1p: {{min: 0}}}}]}}
  - columns: ["cat_{{0..25}}"]
    ops: [{{fillNull: {{value: 0}}}}, {{sigridHash: {{salt: 0}}}}, {{firstx: {{count: 1}}}}]
    table: {{rows: 5000, dim: 16}}
  model: {{dlrm: {{bottom: [64, 32, 16], top: [64, 32, 1]}}}}
  trainer:
    nodes: 2
    processesPerNode: 2
    batchSizePerGpu: 128
    podTemplate:
      spec:
        securityContext: {{runAsNonRoot: false}}
        volumes: [{{name: data, hostPath: {{path: {folder}}}}}]
        containers: [{{name: trainer, volumeMounts: [{{name: data, mountPath: {folder}}}]}}]
  checkpoint: {{path: {folder}/checkpoints, intervalSeconds: 5, keep: 3}}
  evaluation: {{windowRows: 50000}}
  restartPolicy: {{delaySeconds: 1}}
"""


def main() -> int:
    """Runs the demo; 0 when the job is complete after the kill."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, default=Path(".demo/cluster"))
    folder = options.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    say("starting etcd, API server, controllers and scheduler (built by `make servers` the first time)")
    cluster = KubernetesCluster(folder / "cluster")
    agent = NodeAgent(cluster.api, folder / "nodes", nodes=[NodeSpec(name=f"node-{i}", gpus=0) for i in (0, 1)])
    closing: list[Callable[[], object]] = [cluster.stop]
    try:
        cluster.start()
        agent.start()
        closing.insert(0, agent.stop)
        install_crd(cluster)
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        port = _start_operator(cluster, folder, closing)
        _start_producer(folder, closing)
        return _train(cluster, agent, folder, port)
    finally:
        for close in closing:
            close()


def _start_operator(cluster: KubernetesCluster, folder: Path, closing: list[Callable[[], object]]) -> int:
    log = folder / "operator.log"
    command = [sys.executable, "-m", "rap_operator", "--no-lease", "--metrics-port", "0"]
    command += ["--scrape-interval-seconds", "2", "--kubeconfig", str(cluster.kubeconfig)]
    environment = {"PYTHONPATH": str(ROOT / "operator"), "PATH": "/usr/bin:/bin"}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    closing.insert(0, process.kill)
    port = port_of(log)
    say(f"rap-operator runs: its log is {log}, its metrics are http://127.0.0.1:{port}/metrics")
    return port


def _start_producer(folder: Path, closing: list[Callable[[], object]]) -> None:
    options = ["--rows", str(ROWS), "--rate", str(ROWS_PER_SECOND), "--rows-per-file", "2000"]
    command = [sys.executable, "-m", "rap_trainer.cli", "produce", "--out", str(folder / "events"), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    closing.insert(0, process.kill)
    say(f"rap produce writes {ROWS_PER_SECOND:,} events a second into {folder / 'events'}")


def _train(cluster: KubernetesCluster, agent: NodeAgent, folder: Path, port: int) -> int:
    job = folder / "clicks.yaml"
    job.write_text(JOB.format(folder=folder))
    say(f"kubectl apply -f {job}")
    print(cluster.kubectl("apply", "-f", str(job)), end="", flush=True)
    checkpoints = folder / "checkpoints"
    _follow(cluster, lambda: any(checkpoints.glob("step-*")), limit_s=400)
    pods = cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    victim = max(str(pod["metadata"]["name"]) for pod in pods)
    say(f"kill -9 of the process of pod {victim}: the whole group starts again from the checkpoint")
    agent.kill(NAMESPACE, victim)
    _follow(cluster, lambda: _phase(cluster) in ("Completed", "Failed"), limit_s=900)
    say("the story, as kubectl describe tells it:")
    columns = "LEVEL:.type,REASON:.reason,MESSAGE:.message"
    sort = "--sort-by=.metadata.creationTimestamp"
    selector = "--field-selector=involvedObject.kind=RAPJob"
    print(cluster.kubectl("get", "events", "-n", NAMESPACE, sort, selector, "-o", f"custom-columns={columns}"), end="")
    say(f"the model and its report: {checkpoints}/report.html")
    say(f"the operator's metrics, until this ends: http://127.0.0.1:{port}/metrics")
    return 0 if _phase(cluster) == "Completed" else 1


def _phase(cluster: KubernetesCluster) -> str:
    job = cluster.api.get(f"/apis/rap.dev/v1alpha1/namespaces/{NAMESPACE}/rapjobs/clicks")
    return str((job.get("status") or {}).get("phase", ""))


def _follow(cluster: KubernetesCluster, is_done: Callable[[], bool], *, limit_s: float) -> None:
    """Prints `kubectl get rapjobs` whenever it says something new, until it is done."""
    last, begun_s = "", time.monotonic()

    def step() -> bool:
        nonlocal last
        table = cluster.kubectl("get", "rapjobs", "-n", NAMESPACE)
        shown = "\n".join(line.rpartition(" ")[0] for line in table.splitlines())  # the age always changes
        if shown != last:
            last = shown
            print(
                f"{time.monotonic() - begun_s:5.0f} s  {table.splitlines()[0]}\n         {table.splitlines()[1]}",
                flush=True,
            )
        return is_done()

    wait_until(step, limit_s=limit_s, what="the job to go on", every_s=2.0)


def say(text: str) -> None:
    """A line of the demo's own."""
    print(f"[demo] {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
