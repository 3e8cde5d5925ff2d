"""The `rap-operator` command: options in, a running controller out."""

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
from rap_operator.options import parser, unreadable
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
    """Runs until SIGTERM (0) or until the lease is lost (1); exits with 2 for options that cannot be used."""
    options = parser().parse_args(arguments)
    try:
        _access(options)
        if problem := unreadable(options):
            raise ValueError(problem)
        client = _client(options)
    except ValueError as error:
        parser().error(str(error))
    logs.configure(options.log_level)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return run(options, client, stopping)


def run(options: argparse.Namespace, client: kubernetes.client.ApiClient, stopping: threading.Event) -> int:
    """Wires everything together and waits."""
    election = KubernetesApi(client)  # renewed even while the other's rate limit is used up
    lock = None if options.no_lease else _lock(options, election)
    api = KubernetesApi(client, may_write=lock.is_held if lock is not None else lambda: True, qps=options.kube_api_qps)
    fetch = http_fetch(ca_file=options.scrape_ca_file, token_file=options.scrape_token_file)
    scraper = Scraper(lambda: targets(controller.cache), lambda key: controller.queue.add(key), fetch=fetch)
    controller = Controller(
        api,
        namespaces=options.namespaces,
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
    try:
        health = _health(options, controller, lock, exposition, is_leading=is_leading)
    except (OSError, ValueError) as error:
        parser().error(f"--metrics-port {options.metrics_port} and its certificate cannot be served: {error}")
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
    """Raises ValueError where no cluster is named."""
    configuration = kubernetes.client.Configuration()
    try:
        if options.kubeconfig is None and SERVICE_ACCOUNT.exists():
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config(config_file=options.kubeconfig, client_configuration=configuration)
    except Exception as error:  # whatever a file of another kind makes of its reader
        where = options.kubeconfig or "$KUBECONFIG or ~/.kube/config"
        hint = "outside a pod give --kubeconfig a file that kubectl takes too; in one let its ServiceAccount's token be mounted"
        raise ValueError(f"no cluster is named by {where}: {error}; {hint}") from error
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
    """Raises ValueError for parts that do not go together."""
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
