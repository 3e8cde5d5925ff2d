"""What may not be in a RAPJob, by place and value: each is refused by the API server, or by the operator in a condition.

`docs/operator.md` has the table of who refuses which; a test on a real server holds the page to it. `rap validate`
refuses all of them, and so does the operator, which judges with the same code: what a schema can tell as well, the
server refuses before anything is stored.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from operator_world.world import rapjob

Place = tuple[str | int, ...]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operator.md"
BEGIN, END = "<!-- refusals: begin -->", "<!-- refusals: end -->"
KAFKA = {"bootstrapServers": ["k:9092"], "topic": "t"}
GONE = object()
"""In place of a value: the key is left out."""


def named(value: object) -> str:
    """A place or value in a test's name; the same in every process."""
    return "gone" if value is GONE else str(value)


REFUSED: tuple[tuple[Place, Any], ...] = (
    (("unknownKey",), 1),
    (("source",), {}),
    (("source", "kafka"), KAFKA),
    (("source",), {"kafka": {**KAFKA, "bootstrapServers": []}}),
    (("source",), {"kafka": {**KAFKA, "topic": "a b"}}),
    (("source",), {"kafka": {**KAFKA, "startFrom": "yesterday"}}),
    (("source",), {"kafka": {**KAFKA, "format": "xml"}}),
    (("source",), {"kafka": {**KAFKA, "format": "csv", "csv": {"header": False}}}),
    (("source",), {"kafka": {**KAFKA, "auth": {"secretName": "Not a name"}}}),
    (("source",), {"kafka": {**KAFKA, "auth": {"secretName": "s", "mechanism": "NTLM"}}}),
    (("source",), {"kafka": {**KAFKA, "isolation": "serializable"}}),
    (("source",), {"kafka": {**KAFKA, "onDataLoss": "ignore"}}),
    (("source",), {"kafka": {**KAFKA, "partitionDiscoverySeconds": 0}}),
    (("source", "files", "path"), ""),
    (("source", "files", "format"), "xml"),
    (("source", "files"), {"path": "/d", "format": "csv", "csv": {"header": False}}),
    (("source", "files"), {"path": "/d", "format": "csv", "csv": {"hexColumns": ["nothing"]}}),
    (("source", "files"), {"path": "/d", "format": "csv", "csv": {"delimiter": ";;"}}),
    (("source", "files"), {"path": "/d", "deadLetter": {"topic": "t"}}),
    (("source", "files"), {"path": "/d", "errorBudget": {"ratio": 1.5}}),
    (("source", "files"), {"path": "/d", "eventTime": {"unit": "h"}}),
    (("columns",), {}),
    (("columns", "label"), "int8"),
    (("columns", "cat_{0..1}"), "list<int64"),
    (("columns", "int_{2..0}"), "int32"),
    (("columns", "int_0"), "float32"),
    (("label",), ""),
    (("label",), "no_such_column"),
    (("label",), "cat_0"),
    (("features",), []),
    (("features", 0, "columns"), []),
    (("features", 0, "columns"), ["nothing"]),
    (("features", 0, "name"), "one_name_for_three"),
    (("features", 0, "ops", 0), {}),
    (("features", 0, "ops", 0), {"fillNull": {"value": 0}, "log": {}}),
    (("features", 0, "ops", 0), {"fillNul": {"value": 0}}),
    (("features", 0, "ops", 0), {"ngram": {"size": 2}}),
    (("features", 0, "ops"), []),
    (("features", 0, "ops", 1), {"logit": {"eps": 0.5}}),
    (("features", 0, "ops", 1), {"clamp": {"lo": 2, "hi": 1}}),
    (("features", 0, "ops", 1), {"bucketize": {"borders": [2, 1]}}),
    (("features", 0, "ops", 1), {"standardize": {"mean": 0, "std": 0}}),
    (("features", 0, "ops", 1), {"sigridHash": {"salt": 0}}),
    (("features", 1, "ops", 2), {"firstx": {"count": -1}}),
    (("features", 1, "ops", 1), {"positiveModulus": {"modulus": 0}}),
    (("features", 1, "ops", 1), {"clamp": {"lo": 0, "hi": 500}}),
    (("features", 1, "table"), GONE),
    (("features", 1, "table", "dim"), 6),
    (("features", 1, "table", "dim"), 32),
    (("features", 1, "table", "rows"), 0),
    (("features", 1, "table", "rows"), [1, 2, 3]),
    (("features", 1, "table", "rows"), "many"),
    (("model",), {}),
    (("model", "factory"), "a.b:c"),
    (("model",), {"factory": "no function"}),
    (("model", "dlrm", "bottom"), []),
    (("model", "dlrm", "bottom"), [0]),
    (("model", "dlrm", "top"), [32, 2]),
    (("optimizer",), {"dense": {"sgd": {"lr": 0.1}, "adam": {"lr": 0.1}}}),
    (("optimizer",), {"dense": {"sgd": {"lr": 0}}}),
    (("optimizer",), {"embedding": {"adam": {"lr": 0.1, "beta1": 1}}}),
    (("trainer", "image"), ""),
    (("trainer", "nodes"), 0),
    (("trainer", "nodes"), 1025),
    (("trainer",), {"gpusPerNode": 1, "processesPerNode": 2}),
    (("trainer",), {"runtime": "captured"}),
    (("trainer", "batchSizePerGpu"), 0),
    (("trainer", "precision"), "fp8"),
    (("trainer", "seed"), -1),
    (("trainer", "maxSteps"), 0),
    (("trainer", "metricsPort"), 70_000),
    (("trainer", "podTemplate"), "text"),
    (("trainer", "podTemplate"), {"spec": {"containers": "text"}}),
    (("checkpoint",), GONE),
    (("checkpoint", "path"), ""),
    (("checkpoint", "intervalSeconds"), 0),
    (("checkpoint", "keep"), 0),
    (("evaluation",), {"windowRows": 0}),
    (("evaluation",), {"maxNormalizedEntropy": 0}),
    (("evaluation",), {"onDivergence": "panic"}),
    (("publish",), {"path": ""}),
    (("publish",), {"path": "/m", "intervalSeconds": 0}),
    (("replanning",), {"mode": "Always"}),
    (("replanning",), {"threshold": 2}),
    (("replanning",), {"history": 0}),
    (("restartPolicy", "maxRestarts"), -1),
    (("restartPolicy", "delaySeconds"), -1),
    (("restartPolicy", "rules"), [{"action": "Panic"}]),
    (("restartPolicy", "rules"), [{"exitCodes": [0], "action": "Fail"}]),
    (("suspend",), 3),
    (("activeDeadlineSeconds",), -5),
    (("stallSeconds",), -1),
    (("ttlSecondsAfterFinished",), "1h"),
    (("managedBy",), "x" * 64),
    (("restartNonce",), -1),
)


def damaged(place: Place, value: Any) -> dict[str, Any]:
    """A valid job with one value replaced."""
    job = rapjob()
    node: Any = job["spec"]
    for part in place[:-1]:
        node = node[part]
    if value is GONE:
        del node[place[-1]]
    else:
        node[place[-1]] = copy.deepcopy(value)
    return job


def table(verdicts: list[str]) -> str:
    """The page's table, given who refused each row."""
    lines = ["| at `spec.` | refused | by |", "|---|---|---|"]
    for (place, value), who in zip(REFUSED, verdicts, strict=True):
        text = "left out" if value is GONE else f"`{_short(json.dumps(value))}`"
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
        lines.append(f"| `{where}` | {text} | {who} |")
    return "\n".join(lines)


def _short(text: str) -> str:
    return (text if len(text) <= 90 else f"{text[:80]}...").replace("|", "\\|")


def page_table() -> str:
    """The table as the page has it."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
