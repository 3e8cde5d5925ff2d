#!/usr/bin/env python3
"""Make the servers that the tests run against: `python tests/servers/build.py kubernetes|helm|kafka|prometheus|...|all`.

No Docker: Kubernetes, etcd, Helm and Prometheus are built from Go modules, Kafka is its published
jars. Versions and checksums are pinned beside this file. Results are kept in the cache (cache.py)
and reused. The standard library is enough to run this.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # run as a plain script: make `servers` importable, as pytest does
    sys.path.insert(0, str(HERE.parent))

from servers.cache import cache_root, provide, say  # noqa: E402  (needs the path above)
from servers.kafka_classes import class_archive  # noqa: E402
from servers.toolchains import go_command, maven_client  # noqa: E402

HELM_VERSION = "4.3.1"
PROMETHEUS_VERSION = "0.316.0"  # the Go module's number of the release below
PROMETHEUS_RELEASE = "3.16.0"
MONITORING_VERSION = "0.85.0"  # of the Prometheus operator, whose kinds the chart's monitors and rules are of
MONITORING_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
KAFKA_LOCK = HERE / "kafka" / "jars.lock"
PROGRESS_EVERY_S = 30.0
# Wall seconds on 2 idle cores with an empty Go build cache, measured for OPERATOR.md 7.1.
KUBERNETES_COMMANDS = {
    "kube-apiserver": ("k8s.io/kubernetes/cmd/kube-apiserver", 433),
    "kube-controller-manager": ("k8s.io/kubernetes/cmd/kube-controller-manager", 197),
    "kube-scheduler": ("k8s.io/kubernetes/cmd/kube-scheduler", 27),
    "kubectl": ("k8s.io/kubernetes/cmd/kubectl", 56),
    "etcd": ("go.etcd.io/etcd/server/v3", 23),
}


def kubernetes_line() -> str:
    """The folder beside this file that pins the Kubernetes to test against; `$RAP_KUBERNETES` names an older line's."""
    return os.environ.get("RAP_KUBERNETES", "kubernetes")


def kubernetes(line: str | None = None) -> Path:
    """Folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl."""
    module = HERE / (line or kubernetes_line())
    pinned = re.search(r"^\s*k8s\.io/kubernetes v(\S+)$", (module / "go.mod").read_text(), re.MULTILINE)
    assert pinned, "go.mod names no version of k8s.io/kubernetes"
    version = pinned[1]
    major, minor, _ = version.split(".", 2)
    stamps = {
        "k8s.io/component-base/version.gitVersion": f"v{version}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{version}",
    }
    flags = _link_flags(stamps)

    def produce(folder: Path) -> None:
        for name, (package, expected_s) in KUBERNETES_COMMANDS.items():
            arguments = ["build", "-v", *flags, "-o", str(folder / name), package]
            _go(f"{name} {version}", arguments, expected_s=expected_s, module=module)

    return provide(f"kubernetes-{version}", produce)


def helm() -> Path:
    """Folder with helm."""
    flags = _link_flags({"helm.sh/helm/v4/internal/version.version": f"v{HELM_VERSION}"})

    def produce(folder: Path) -> None:
        arguments = ["install", "-v", *flags, f"helm.sh/helm/v4/cmd/helm@v{HELM_VERSION}"]
        _go(f"helm {HELM_VERSION}", arguments, expected_s=285, install_into=folder)

    return provide(f"helm-{HELM_VERSION}", produce)


def prometheus() -> Path:
    """Folder with prometheus (without its web page) and promtool."""
    module = "github.com/prometheus/prometheus"
    flags = _link_flags({"github.com/prometheus/common/version.Version": PROMETHEUS_RELEASE})

    def produce(folder: Path) -> None:
        packages = [f"{module}/cmd/{name}@v{PROMETHEUS_VERSION}" for name in ("prometheus", "promtool")]
        arguments = ["install", "-v", *flags, *packages]
        _go(f"prometheus {PROMETHEUS_VERSION}", arguments, expected_s=399, install_into=folder)

    return provide(f"prometheus-{PROMETHEUS_VERSION}", produce)


def monitoring_kinds() -> Path:
    """Folder with the Prometheus operator's CustomResourceDefinitions, a YAML file each."""
    module = "github.com/prometheus-operator/prometheus-operator"

    def produce(folder: Path) -> None:
        say(f"kinds of the Prometheus operator {MONITORING_VERSION}: fetching 4 MB")
        command = [str(go_command()), "mod", "download", "-json", f"{module}@v{MONITORING_VERSION}"]
        environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        found = json.loads(answer.stdout or "{}")
        if answer.returncode or found["Sum"] != MONITORING_SUM:
            raise SystemExit(f"servers: {module}: {found.get('Error') or found.get('Sum') or answer.stderr}")
        for crd in Path(found["Dir"], "example", "prometheus-operator-crd").glob("*.yaml"):
            shutil.copyfile(crd, folder / crd.name)

    return provide(f"monitoring-kinds-{MONITORING_VERSION}", produce)


def kafka() -> Path:
    """Folder with Kafka's jars, each checked against the committed list."""
    locked = [line.split() for line in KAFKA_LOCK.read_text().splitlines() if line and not line.startswith("#")]
    version = next(name.rsplit(":", 1)[1] for _, name in locked if name.startswith("org.apache.kafka:kafka_2.13:"))

    def produce(folder: Path) -> None:
        say(f"kafka {version}: fetching {len(locked)} jars from Maven Central")
        environment = {**os.environ, "PYTHONPATH": str(maven_client())}
        with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
            downloads = [pool.submit(_fetch_jar, name, sha256, folder, environment) for sha256, name in locked]
            for done in concurrent.futures.as_completed(downloads):
                done.result()
        size_bytes = sum(jar.stat().st_size for jar in folder.iterdir())
        say(f"kafka {version}: {len(locked)} jars, {size_bytes / 1e6:.0f} MB, all checksums match")

    jars = provide(f"kafka-{version}", produce)
    class_archive(jars)  # and with it Java: made now, so that a test never waits for it
    return jars


def _fetch_jar(name: str, sha256: str, folder: Path, environment: dict[str, str]) -> None:
    artifact, version = name.split(":")[1:]
    jar = folder / f"{artifact}-{version}.jar"
    command = [sys.executable, "-m", "maven_artifact.main", "--hash-type", "sha1", name, str(jar)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode or not jar.is_file():
        raise SystemExit(f"servers: cannot fetch {name}: {(answer.stdout + answer.stderr).strip()[-500:]}")
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != sha256:
        raise SystemExit(f"servers: {name} is not the locked file: sha256 {found}, expected {sha256}")


def _link_flags(stamps: dict[str, str]) -> list[str]:
    """Flags that strip binaries and stamp the version, without which servers report v0.0.0."""
    return ["-trimpath", "-ldflags", " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])]


def _go(
    what: str, arguments: list[str], *, expected_s: int, module: Path | None = None, install_into: Path | None = None
) -> None:
    """Run Go at low priority and show that it lives: packages compiled and seconds gone."""
    command = ["nice", "-n", "15", str(go_command()), *arguments]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    if install_into:
        environment["GOBIN"] = str(install_into)
    say(f"{what}: building, about {expected_s} s on 2 idle cores the first time")
    began_s = time.monotonic()
    with subprocess.Popen(command, cwd=module, env=environment, stderr=subprocess.PIPE, text=True) as go:
        assert go.stderr is not None
        lines: list[str] = []
        ended = threading.Event()
        reporter = threading.Thread(target=_report, args=(what, lines, ended, began_s), daemon=True)
        reporter.start()
        lines.extend(iter(go.stderr.readline, ""))
        ended.set()
    if go.returncode:
        raise SystemExit(f"servers: {what}: go failed with {go.returncode}:\n" + "".join(lines[-30:]))
    say(f"{what}: built in {time.monotonic() - began_s:.0f} s")


def _report(what: str, lines: list[str], ended: threading.Event, began_s: float) -> None:
    while not ended.wait(PROGRESS_EVERY_S):
        say(f"{what}: {len(lines)} packages fetched or compiled after {time.monotonic() - began_s:.0f} s")


RECIPES = {
    "kubernetes": kubernetes,
    "helm": helm,
    "kafka": kafka,
    "prometheus": prometheus,
    "monitoring-kinds": monitoring_kinds,
}


def main(arguments: list[str]) -> int:
    """Make what is named, print where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=[*RECIPES, "all"])
    options = parser.parse_args(arguments)
    names = list(RECIPES) if "all" in options.what else list(dict.fromkeys(options.what))
    say(f"cache is {cache_root()}")
    for name in names:
        say(f"{name}: ready in {RECIPES[name]()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
