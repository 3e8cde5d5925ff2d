"""The `rap-operator` command: arguments in, a running controller out."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kubernetes.client
import kubernetes.config
import prometheus_client
from rap_contract.guarded_http import Access

from rap_operator import logs
from rap_operator.api import KubernetesApi
from rap_operator.controller import Controller
from rap_operator.exposition import Exposition
from rap_operator.health import HealthServer, standing_still
from rap_operator.lease import Identity, LeaseLock
from rap_operator.pages import Fetch, http_fetch
from rap_operator.policy import Limits
from rap_operator.replanning import replanner
from rap_operator.replanning.replanner import Replanner
from rap_operator.replanning.searches import Limits as SearchLimits
from rap_operator.replanning.sources import PodSource, PrometheusSource
from rap_operator.scrape import Scraper
from rap_operator.targets import targets

LOG = logging.getLogger(__name__)
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
EXIT_LEASE_LOST = 1
# A page of 500 pods is some 100,000 containers; at the default of 700 three quarters of reading one went into the
# collector (200 and 69 us a pod, 2026-11-30).
GC_ALLOCATIONS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM (0) or until the lease is lost (1)."""
    options = parser().parse_args(arguments)
    try:
        _access(options)
    except ValueError as error:
        parser().error(f"--metrics-...: {error}")
    logs.configure(options.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return run(options, stopping)


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="rap-operator", description="Runs RAPJobs.")
    made.add_argument("--namespaces", default="", help="comma-separated; default: all")
    made.add_argument("--workers", type=int, default=4, help="passes at a time")
    made.add_argument("--metrics-port", type=int, default=8080, help="/metrics, /healthz and /readyz; 0: any free one")
    made.add_argument("--metrics-tls-cert", type=Path, default=None, help="serve that port over HTTPS: certificate")
    made.add_argument("--metrics-tls-key", type=Path, default=None, help="and its key")
    made.add_argument("--metrics-token-file", type=Path, default=None, help="readers of /metrics must send this token")
    made.add_argument("--kubeconfig", default=None, help="default: the pod's service account, else ~/.kube/config")
    made.add_argument("--kube-api-qps", type=float, default=400.0, help="requests a second, watches apart")
    made.add_argument("--lease-name", default="rap-operator", help="Lease for the election of a leader")
    made.add_argument("--lease-namespace", default=None, help="default: the operator's own namespace")
    made.add_argument("--no-lease", action="store_true", help="without election: only for one replica")
    made.add_argument("--identity", default=None, help="default: $POD_NAME, else host and a random part")
    made.add_argument("--force-delete-after-seconds", type=float, default=Limits.force_after_s)
    made.add_argument("--rollback-after-seconds", type=float, default=Limits.rollback_after_s)
    made.add_argument("--scrape-interval-seconds", type=float, default=30.0, help="0: read no trainer's metrics")
    made.add_argument("--scrape-ca-file", type=Path, default=None, help="certificates of trainers that serve HTTPS")
    made.add_argument("--scrape-token-file", type=Path, default=None, help="token sent to trainers that serve HTTPS")
    made.add_argument("--prometheus-url", default="", help="read what plans depend on there, not from the pods")
    made.add_argument("--max-switching", type=int, default=10, help="jobs that change their plan at a time")
    made.add_argument("--search-seconds", type=float, default=20.0, help="a search for a plan is ended after so long")
    made.add_argument("--search-memory-mib", type=int, default=1024, help="and takes no more memory than this")
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def run(options: argparse.Namespace, stopping: threading.Event) -> int:
    """Wires everything together and waits."""
    election = KubernetesApi(_client(options))  # renewed even while the other's rate limit is used up
    lock = None if options.no_lease else _lock(options, election)
    api = KubernetesApi(
        _client(options), may_write=lock.is_held if lock is not None else lambda: True, qps=options.kube_api_qps
    )
    fetch = http_fetch(ca_file=options.scrape_ca_file, token_file=options.scrape_token_file)
    scraper = Scraper(lambda: targets(controller.cache), lambda key: controller.queue.add(key), fetch=fetch)
    controller = Controller(
        api,
        namespaces=tuple(name for name in options.namespaces.split(",") if name),
        limits=Limits(
            force_after_s=options.force_delete_after_seconds, rollback_after_s=options.rollback_after_seconds
        ),
        telemetry_of=scraper.telemetry_of,
    )
    exposition = Exposition(controller, version=_version())
    api.calls = election.calls = exposition.request
    scraper.count = exposition.scrape
    if options.scrape_interval_seconds > 0:
        planning = _replanner(options, controller, fetch, scraper)
        planning.count = exposition.replan
        exposition.replans_running(lambda: planning.num_running)
        controller.replan_with(planning)
    is_leading = threading.Event()
    health = _health(options, controller, lock, exposition, is_leading=is_leading)
    health.start()
    LOG.info("health and metrics on port %d", health.port)
    _collect_rarely()
    controller.watch()  # a replica that waits for the lease knows the world by the time it leads
    if lock is not None and not lock.acquire(stopping):
        return 0
    is_leading.set()
    exposition.lead(is_leader=True)
    controller.work(workers=options.workers)
    if options.scrape_interval_seconds > 0:
        arguments = {"interval_s": options.scrape_interval_seconds}
        threading.Thread(target=scraper.run, args=(controller.stopping,), kwargs=arguments, daemon=True).start()
    is_kept = lock.hold(stopping) if lock is not None else stopping.wait()
    if not is_kept:
        os._exit(EXIT_LEASE_LOST)  # another leads: nothing of this process may go on, not even a cleanup
    controller.stop()
    if lock is not None:
        lock.release()
    health.stop()
    return 0


def _collect_rarely() -> None:
    """What was imported stays, and parsed JSON holds no cycles: looking for garbage in both took longer than parsing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS)


def _lock(options: argparse.Namespace, api: KubernetesApi) -> LeaseLock:
    namespace = options.lease_namespace or _own_namespace()
    return LeaseLock(api, namespace=namespace, name=options.lease_name, identity=_identity(options.identity, namespace))


def _identity(name: str | None, namespace: str) -> Identity:
    """The pod's own name, and its UID if it is in the Lease's namespace: others may then see whether it has ended."""
    pod = os.environ.get("POD_NAME", "")
    uid = os.environ.get("POD_UID", "") if os.environ.get("POD_NAMESPACE") == namespace else ""
    if name is None and pod:
        return Identity(pod, uid)
    return Identity(name or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}")


def _health(
    options: argparse.Namespace,
    controller: Controller,
    lock: LeaseLock | None,
    exposition: Exposition,
    *,
    is_leading: threading.Event,
) -> HealthServer:
    def healthy() -> str:
        if is_leading.is_set():
            return standing_still(controller)
        waited_s = time.monotonic() - lock.attempted_s if lock else 0.0
        return f"no try for the lease for {waited_s:.0f} s" if waited_s > 120 else ""

    # Readiness does not depend on leadership, or a rolling update would wait for itself.
    return HealthServer(
        options.metrics_port,
        healthy=healthy,
        ready=lambda: "" if not is_leading.is_set() or controller.is_synced else "the first lists are not in yet",
        page=exposition.page,
        access=_access(options),
    )


def _client(options: argparse.Namespace) -> kubernetes.client.ApiClient:
    configuration = kubernetes.client.Configuration()
    if options.kubeconfig is None and SERVICE_ACCOUNT.exists():
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    else:
        kubernetes.config.load_kube_config(config_file=options.kubeconfig, client_configuration=configuration)
    configuration.connection_pool_maxsize = 64
    configuration.keep_alive = True
    return kubernetes.client.ApiClient(configuration)


def _replanner(options: argparse.Namespace, controller: Controller, fetch: Fetch, scraper: Scraper) -> Replanner:
    pods = PodSource(fetch)
    pods.on_first = scraper.offer
    source = PrometheusSource(fetch, options.prometheus_url) if options.prometheus_url else pods
    search = SearchLimits(deadline_s=options.search_seconds, memory_bytes=options.search_memory_mib << 20)
    limits = replanner.Options(
        max_switching=options.max_switching, interval_s=options.scrape_interval_seconds, search=search
    )
    return Replanner(controller.cache, source, fetch, controller.queue.add, options=limits)


def _access(options: argparse.Namespace) -> Access:
    return Access(
        certificate=options.metrics_tls_cert, key=options.metrics_tls_key, token_file=options.metrics_token_file
    )


def _own_namespace() -> str:
    return SERVICE_ACCOUNT.read_text().strip() if SERVICE_ACCOUNT.exists() else "default"


def _version() -> str:
    try:
        return version("rap")
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
