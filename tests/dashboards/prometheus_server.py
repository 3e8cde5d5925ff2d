"""A real Prometheus that scrapes what a test started, and its answers."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from servers.processes import ServerProcess, free_port

SCRAPE_S = 1


@dataclass(frozen=True, kw_only=True)
class Target:
    """One scraped port, with the labels that a PodMonitor would give it."""

    port: int
    labels: Mapping[str, str]

    def scrape(self) -> dict[str, Any]:
        """A scrape configuration of this port alone."""
        found = {"targets": [f"127.0.0.1:{self.port}"], "labels": dict(self.labels)}
        return {"job_name": f"port-{self.port}", "honor_labels": True, "static_configs": [found]}


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of an answer: (Unix time, value) pairs, NaN left out."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class PrometheusServer:
    """Prometheus in a folder. Raises RuntimeError with its words for a query that it refuses."""

    def __init__(self, binary: Path, folder: Path, scrapes: Sequence[Mapping[str, Any]]) -> None:
        """`scrapes`: entries of Prometheus' `scrape_configs`."""
        self._port = free_port()
        config = {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [dict(scrape) for scrape in scrapes]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        command = [
            str(binary),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self.process = ServerProcess(
            "prometheus", command, log_path=folder / "prometheus.log", is_healthy=self._is_ready
        )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def instant(self, expr: str) -> list[Series]:
        """The answer as of now."""
        return [_series(each, [each["value"]]) for each in self._ask("query", query=expr)]

    def over(self, expr: str, *, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """The answer over a range of Unix times."""
        found = self._ask("query_range", query=expr, start=start_s, end=end_s, step=step_s)
        return [_series(each, each["values"]) for each in found]

    def targets(self) -> list[dict[str, str]]:
        """Labels of what is scraped, after relabelling, with the URL as `url`."""
        found = self._data("targets", state="active")["activeTargets"]
        return [{**target["labels"], "url": target["scrapeUrl"]} for target in found]

    def _ask(self, what: str, **parameters: object) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._data(what, **parameters)["result"]
        return result

    def _data(self, what: str, **parameters: object) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{parameters}: {refused.read().decode()}") from refused


def _series(found: dict[str, Any], pairs: Sequence[tuple[float, str]]) -> Series:
    points = tuple((float(at), float(value)) for at, value in pairs if not math.isnan(float(value)))
    return Series(labels=found["metric"], points=points)
