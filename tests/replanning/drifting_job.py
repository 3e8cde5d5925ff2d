"""A job whose lists grow on demand, on a real API server: its producer, its spec, and what its ranks and its status say."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from operator_world.on_server import OnServer
from operator_world.pods import pod_sharing
from rap_contract.metrics import PLAN_INFO
from rap_contract.validation import check_job
from replanning.cpu_profile import cpu_profile
from train.small_jobs import document

WINDOW_S = 15
SHORT, LONG = 4, 12
ROWS, EVERY_S = 120, 0.25
"""Of a file, and between two files."""
PORT = 9400


class Producer:
    """Writes a file of events several times a second; `length` is that of the lists."""

    def __init__(self, folder: Path) -> None:
        self.length = SHORT
        self._folder, self._stopping = folder, threading.Event()
        self._random = np.random.default_rng(0)
        self._number = 0
        folder.mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self.write()

    def write(self) -> None:
        """One file, put in place at once."""
        table = {"label": pa.array(self._random.integers(0, 2, ROWS).astype("int32"))}
        table |= {f"int_{i}": pa.array(self._random.random(ROWS).astype("float32")) for i in range(3)}
        for i in range(3):
            ids = self._random.integers(0, 1000, (ROWS, self.length))
            table[f"cat_{i}"] = pa.array(list(ids), type=pa.list_(pa.int64()))
        aside = self._folder.parent / "aside.parquet"
        pq.write_table(pa.table(table), aside)
        self._number += 1
        aside.rename(self._folder / f"part-{self._number:06d}.parquet")


def job(shared: Path) -> dict[str, Any]:
    """A job on two nodes whose windows are short and whose every drift of the lists is followed."""
    made = document(shared, source__files__follow=True, trainer__metricsPort=PORT, trainer__maxWaitMs=200)
    made["metadata"]["name"] = "clicks"
    spec = made["spec"]
    spec["features"][1]["ops"] = [{"positiveModulus": {"modulus": 40}}]
    spec["restartPolicy"] = {"delaySeconds": 0}
    spec["checkpoint"]["intervalSeconds"] = 5
    spec["replanning"] = {
        "windowSeconds": WINDOW_S,
        "stabilizationSeconds": 5,
        "holdSeconds": 0,
        "minIntervalSeconds": 0,
        "plausibleRatio": 0,
        "threshold": 0.02,
        "triggers": {"exposedRatio": 0, "predictionRatio": 0},
    }
    spec["trainer"] |= {"nodes": 2, "podTemplate": {"spec": pod_sharing(shared, grace_s=10)}}
    return made


def profile_into(shared: Path) -> None:
    """Writes the profile by which long lists want another plan than short ones; the ranks find it beside their checkpoints."""
    (shared / "checkpoints").mkdir(parents=True)
    profile = cpu_profile(check_job(job(shared)), beside_s=0.0010, step_s=0.005, seconds_per_byte=1e-7)
    (shared / "checkpoints" / "profile.json").write_text(profile.to_json())


def pages(on_server: OnServer) -> list[str]:
    """What each rank says of itself."""
    found = []
    for pod in on_server.pods():
        with urllib.request.urlopen(f"http://{pod['status'].get('podIP')}:{PORT}/metrics", timeout=5) as answer:
            found.append(answer.read().decode())
    return found


def samples(page: str, name: str) -> list[tuple[str, float]]:
    """Labels, as they are written, and values of a metric."""
    lines = [line for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return [(line.removeprefix(name).rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines]


def plans_in(found: list[str]) -> list[str]:
    """The plan each of some pages names."""
    return [
        labels.partition('plan="')[2].partition('"')[0] for page in found for labels, _ in samples(page, PLAN_INFO.name)
    ]


def plans_reported(on_server: OnServer) -> list[str]:
    """The plan each rank says it runs."""
    return plans_in(pages(on_server))


def outcomes(on_server: OnServer) -> list[str]:
    """What was decided, oldest first, but for refusals to act."""
    records = on_server.status().get("replans", [])
    return [record["outcome"] for record in reversed(records) if record["outcome"] != "None"]
