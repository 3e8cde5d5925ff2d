"""RAPJob documents nobody would write, judged as the operator judges them: a problem with a place, never a traceback.

    PYTHONPATH=operator:trainer:tests python -m operator_world.document_fuzz --documents 1000000    (`make fuzz`)

Each document is a function of its number alone, so a failure is repeated by `--first N --documents 1`. What is found
valid goes on: its children are made and a first decision is taken.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from operator_world.world import rapjob
from rap_contract.status import Attempt, time_text
from rap_operator import children
from rap_operator.decide import decide
from rap_operator.observe import judge, subject_of
from rap_operator.observed import Observed

CHUNK = 2_000
SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples"
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), "", " ", "x", "0", "null", "é", "\u0000", "\ud800", "a" * 300, "int_{0..2}"),
    *("int_{2..0}", "int_{0..99999999999}", "a_{0..1}_{0..1}", "{", "list<int64>", "list<list<int64>>", "float32"),
    *([], {}, [[]], [None], [{}], [1, "x"], {"": 1}, {"x": {}}, {"value": 0}, {"count": 1}, [{"name": "trainer"}]),
)
OPS: tuple[Any, ...] = (
    *({"fillNull": {"value": 0}}, {"sigridHash": {"salt": 1}}, {"positiveModulus": {"modulus": 7}}),
    *({"firstx": {"count": 2}}, {"clamp": {"lo": 0, "hi": 9}}, {"bucketize": {"borders": [1, 2, 3]}}, {"log": {}}),
    *({"onehot": {"low": 0, "high": 9, "classes": 3}}, {"ngram": {"size": 2}}, {"enumerate": {}}, {"log1p": {}}),
    *({"boxcox": {"lambda": 0.5}}, {"logit": {"eps": 1e-5}}, {"localHour": {}}, {"standardize": {"mean": 0, "std": 1}}),
    *({"mapId": {"map": {"1": 2}}}, {"sample": {"rate": 0.5}}, {"cartesian": {"with": "cat_0"}}, {"nothing": {}}),
)
TEMPLATES: tuple[Any, ...] = (
    {"spec": {"containers": [{"name": "trainer", "env": [{"name": "A", "value": "b"}]}]}},
    {"spec": {"containers": [{"name": "trainer", "$patch": "delete"}]}},
    {"spec": {"$patch": "replace", "containers": []}},
    {"spec": {"volumes": [{"name": "rap-shm", "emptyDir": None}], "schedulerName": "volcano"}},
    {"metadata": {"labels": {"a": "b"}}, "spec": {"tolerations": []}},
)


def bases() -> list[dict[str, Any]]:
    """Valid documents that the damage starts from."""
    kafka = {"files": None, "kafka": {"bootstrapServers": ["k:9092"], "topic": "t", "auth": {"secretName": "s"}}}
    rich = rapjob(source=kafka, trainer={"podTemplate": TEMPLATES[0], "gpusPerNode": 2}, stallSeconds=60)
    samples = [yaml.safe_load(path.read_text()) for path in sorted(SAMPLES.glob("*.yaml"))]
    return [rapjob(), rich, *[sample for sample in samples if sample.get("kind") == "RAPJob"]]


def document(number: int, known: list[dict[str, Any]]) -> dict[str, Any]:
    """The document of a number."""
    draw = random.Random(number)
    job = copy.deepcopy(draw.choice(known))
    if draw.random() < 0.3:  # the rest of the document is sound, so that what is merged is reached
        job["spec"].setdefault("trainer", {})["podTemplate"] = _template(draw)
        return _named(job)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        _damage(job, draw)
    return _named(job)


def _template(draw: random.Random) -> dict[str, Any]:
    template = {"podTemplate": copy.deepcopy(draw.choice(TEMPLATES))}
    for _ in range(draw.choice((0, 1, 1, 2))):
        _damage({"spec": template}, draw)
    damaged: dict[str, Any] = template.get("podTemplate", {})
    return damaged


def _named(job: dict[str, Any]) -> dict[str, Any]:
    """The metadata is the server's and always sound."""
    metadata = job.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        job["metadata"] = {"name": "clicks"}
    job["metadata"] |= {"uid": "0a1b2c3d", "namespace": "jobs", "generation": 1}
    for part in ("labels", "annotations", "deletionTimestamp"):
        job["metadata"].pop(part, None)
    return job


def _damage(job: dict[str, Any], draw: random.Random) -> None:
    node: Any = job.get("spec", job)
    while True:
        places: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not places:
            return
        place = draw.choice(places)
        child = node[place]
        if isinstance(child, dict | list) and child and draw.random() < 0.75:
            node = child
            continue
        _replace(node, place, draw)
        return


def _replace(node: Any, place: Any, draw: random.Random) -> None:
    what = draw.random()
    if what < 0.45:
        node[place] = copy.deepcopy(draw.choice(JUNK))
    elif what < 0.55:
        del node[place]
    elif what < 0.65 and isinstance(node, dict):
        node[f"{place}{draw.choice(('', 'x', '_', ' '))}" or "y"] = node.pop(place)
    elif what < 0.75 and isinstance(node, dict):
        node["podTemplate"] = copy.deepcopy(draw.choice((*TEMPLATES, *JUNK)))
    elif what < 0.9:
        node[place] = copy.deepcopy(draw.choice(OPS))
    elif isinstance(node, list):
        node.append(copy.deepcopy(node[place]))
    elif isinstance(node[place], int | float) and not isinstance(node[place], bool):
        node[place] = node[place] * draw.choice((-1, 0, 2, 1000, 10**12))
    else:
        node[place] = copy.deepcopy(node)


def judged(job: dict[str, Any]) -> str:
    """What became of a document: `valid` or `refused`. Raises AssertionError if that is not said properly."""
    verdict = judge(job)
    subject = subject_of(job)
    decide(verdict, Observed(subject=subject), 1_000_000.0)
    if verdict.spec is None:
        assert verdict.problems, "refused without a reason"
        assert all(problem.strip() for problem in verdict.problems), "an empty reason"
        return "refused"
    attempt = Attempt(number=1, nodes=verdict.spec.trainer.nodes, recorded_at=time_text(0.0), revision=verdict.revision)
    json.dumps(children.attempt_job(subject, attempt, verdict.spec))
    json.dumps(children.spec_config(subject, verdict.revision, verdict.spec)[1])
    return "valid"


def judge_all(numbers: Iterable[int]) -> tuple[Counter[str], list[str], float]:
    """How many were valid and refused, the tracebacks with their numbers, and the longest time for one in seconds."""
    counts: Counter[str] = Counter()
    tracebacks: list[str] = []
    known, longest_s = bases(), 0.0
    for number in numbers:
        begun_s = time.process_time()
        try:
            counts[judged(document(number, known))] += 1
        except Exception:
            tracebacks.append(f"document {number}: {traceback.format_exc()}")
        longest_s = max(longest_s, time.process_time() - begun_s)
    return counts, tracebacks, longest_s


def main() -> int:
    """Judges many; 0 when there was no traceback."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--documents", type=int, default=1_000_000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--processes", type=int, default=2)
    given = options.parse_args()
    last = given.first + given.documents
    chunks = [range(begin, min(begin + CHUNK, last)) for begin in range(given.first, last, CHUNK)]
    counts: Counter[str] = Counter()
    tracebacks: list[str] = []
    longest_s, begun_s = 0.0, time.monotonic()
    with ProcessPoolExecutor(given.processes) as pool:
        for index, (found, failed, took_s) in enumerate(pool.map(judge_all, chunks), 1):
            counts += found
            tracebacks += failed
            longest_s = max(longest_s, took_s)
            if index % 5 == 0 or index == len(chunks):
                line: dict[str, float] = {
                    "documents": sum(counts.values()) + len(tracebacks),
                    "tracebacks": len(tracebacks),
                    **counts,
                }
                line |= {"longest_cpu_s": round(longest_s, 3), "seconds": round(time.monotonic() - begun_s)}
                print(json.dumps(line), flush=True)
    for text in tracebacks[:10]:
        print(text, file=sys.stderr)
    return 1 if tracebacks else 0


if __name__ == "__main__":
    sys.exit(main())
