"""The options of the `rap-operator` command, each checked where it is given. Not here: what they do."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rap_operator.policy import Limits

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# A Lease's name may have dots, a namespace's may not.
DOTTED = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})*")
FILES = ("metrics_tls_cert", "metrics_tls_key", "metrics_token_file", "scrape_ca_file", "scrape_token_file")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="rap-operator", description="Runs RAPJobs.")
    made.add_argument("--namespaces", type=_namespaces, default=(), help="comma-separated; default: all")
    made.add_argument("--workers", type=_number(int, 1, 64), default=4, help="passes at a time")
    made.add_argument(
        "--metrics-port",
        type=_number(int, 0, 65535),
        default=8080,
        help="/metrics, /healthz and /readyz; 0: any free one",
    )
    made.add_argument("--metrics-tls-cert", type=Path, default=None, help="serve that port over HTTPS: certificate")
    made.add_argument("--metrics-tls-key", type=Path, default=None, help="and its key")
    made.add_argument("--metrics-token-file", type=Path, default=None, help="readers of /metrics must send this token")
    made.add_argument("--kubeconfig", default=None, help="default: the pod's service account, else ~/.kube/config")
    made.add_argument("--kube-api-qps", type=_number(float, 1), default=400.0, help="requests a second, watches apart")
    made.add_argument(
        "--lease-name", type=_lease_name, default="rap-operator", help="Lease for the election of a leader"
    )
    made.add_argument("--lease-namespace", type=_namespace, default=None, help="default: the operator's own namespace")
    made.add_argument("--no-lease", action="store_true", help="without election: only for one replica")
    made.add_argument("--identity", default=None, help="default: $POD_NAME, else host and a random part")
    made.add_argument("--force-delete-after-seconds", type=_number(float, 0), default=Limits.force_after_s)
    made.add_argument("--rollback-after-seconds", type=_number(float, 0), default=Limits.rollback_after_s)
    made.add_argument(
        "--scrape-interval-seconds", type=_number(float, 0), default=30.0, help="0: read no trainer's metrics"
    )
    made.add_argument("--scrape-ca-file", type=Path, default=None, help="certificates of trainers that serve HTTPS")
    made.add_argument("--scrape-token-file", type=Path, default=None, help="token sent to trainers that serve HTTPS")
    made.add_argument(
        "--prometheus-url", type=_url, default="", help="read what plans depend on there, not from the pods"
    )
    made.add_argument("--max-switching", type=_number(int, 1), default=10, help="jobs that change their plan at a time")
    made.add_argument(
        "--search-seconds", type=_number(float, 0.1), default=20.0, help="a search for a plan is ended after so long"
    )
    made.add_argument(
        "--search-memory-mib", type=_number(int, 64), default=1024, help="and takes no more memory than this"
    )
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def unreadable(options: argparse.Namespace) -> str:
    """What is wrong with the files that are named, if anything."""
    for name in FILES:
        path: Path | None = getattr(options, name)
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            return f"--{name.replace('_', '-')}: {path} cannot be read: {error.strerror}"
    return ""


def _number(kind: type[int] | type[float], low: float, high: float = math.inf) -> Callable[[str], float]:
    bounds = f"{low:g} or more" if math.isinf(high) else f"{low:g} to {high:g}"

    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and low <= value <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' if kind is int else ''}number of {bounds}")
        return value

    return number


def _namespace(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a namespace: lower-case letters, digits and dashes")
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    return tuple(_namespace(name) for name in text.split(",")) if text else ()


def _lease_name(text: str) -> str:
    if not DOTTED.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a Lease: lower-case letters, digits, dashes and dots")
    return text


def _url(text: str) -> str:
    place = urlsplit(text)
    if text and (place.scheme not in ("http", "https") or not place.hostname):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: it begins with http:// or https:// and a host")
    return text
