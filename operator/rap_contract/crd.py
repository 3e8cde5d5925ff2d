"""The CustomResourceDefinition of a RAPJob, generated from the contract.

`python -m rap_contract.crd > manifests/crd/rapjobs.rap.dev.yaml` writes it. What the server can refuse
it refuses: bounds, enums, choices and the rules below. The rest (chains typed end to end, names that
patterns stand for) is the operator's, which says it in the condition Accepted.
"""

from __future__ import annotations

import sys
from typing import Any

from rap_contract.crd_schema import Schema, structural
from rap_contract.job import GROUP, KIND, VERSION, RAPJob, RAPJobSpec
from rap_contract.status import Status
from rap_contract.yaml_text import yaml_text

PLURAL = "rapjobs"
NAME = f"{PLURAL}.{GROUP}"
_COLUMN_TYPE = "^(int32|int64|float32|float64|list<(int32|int64|float32|float64)>)$"

Rule = tuple[str, str]
"""A CEL expression and what to say when it is false."""

_CSV_NAMES: Rule = (
    "!(self.format in ['csv', 'tsv']) || !has(self.csv) || self.csv.header || has(self.csv.columnNames)",
    "csv.columnNames is required without a header",
)
RULES: dict[str, tuple[Rule, ...]] = {
    "source": (("has(self.kafka) != has(self.files)", "exactly one of kafka and files"),),
    "source.kafka": (_CSV_NAMES,),
    "source.files": (
        _CSV_NAMES,
        (
            "!has(self.deadLetter) || !has(self.deadLetter.topic)",
            "a file source has no topic to write to: give deadLetter.path",
        ),
    ),
    "model": (("has(self.dlrm) != has(self.factory)", "exactly one of dlrm and factory"),),
    "trainer": (
        (
            "!has(self.gpusPerNode) || self.gpusPerNode == 0 || !has(self.processesPerNode) || self.processesPerNode == 1",
            "processesPerNode is only for trainers without GPUs: a GPU has one rank",
        ),
        (
            "!has(self.runtime) || self.runtime != 'captured' || (has(self.gpusPerNode) && self.gpusPerNode > 0)",
            "runtime captured needs GPUs: use auto or eager",
        ),
    ),
    "": (
        (
            "has(self.source.kafka) == has(oldSelf.source.kafka)",
            "the kind of source never changes: create another job",
        ),
        (
            "has(self.managedBy) ? has(oldSelf.managedBy) && self.managedBy == oldSelf.managedBy : !has(oldSelf.managedBy)",
            "managedBy never changes",
        ),
        (
            "self.suspend || oldSelf.suspend || self.model == oldSelf.model",
            "the model changes only while the job is suspended",
        ),
        (
            "self.suspend || oldSelf.suspend || self.label == oldSelf.label",
            "the label changes only while the job is suspended",
        ),
        (
            "self.suspend || oldSelf.suspend || self.checkpoint.path == oldSelf.checkpoint.path",
            "checkpoint.path changes only while the job is suspended",
        ),
    ),
}
"""CEL rules by their place below spec. They also judge the default `{}` of a part, before its own defaults."""

COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("Phase", "string", ".status.phase", "Where the job stands"),
    ("Ready", "string", ".status.ready", "Pods that run, of those wanted"),
    ("Samples/s", "number", ".status.metrics.samplesPerSecond", "Rows of all ranks a second"),
    ("Exposed%", "number", ".status.metrics.exposedPercent", "Share of the step that preprocessing adds"),
    ("Freshness", "number", ".status.metrics.freshnessSeconds", "Event time to optimizer step, seconds"),
    ("Lag", "number", ".status.metrics.lagRecords", "Records not yet read"),
    ("Plan", "string", ".status.plan.hash", "Hash of the plan in force"),
    ("Restarts", "integer", ".status.restarts.total", "Attempts after the first"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created"),
)
"""Printer columns: name, type, path, description."""


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition as an object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": PLURAL.removesuffix("s"),
                "shortNames": ["rj"],
                "categories": ["all", "rap"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.trainer.nodes",
                "statusReplicasPath": ".status.nodes",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": description}
            for name, kind, path, description in COLUMNS
        ],
    }


def _schema() -> Schema:
    spec = structural(RAPJobSpec)
    spec["properties"]["columns"]["additionalProperties"] |= {"pattern": _COLUMN_TYPE, "maxLength": 16}
    for place, rules in RULES.items():
        node = spec
        for part in place.split(".") if place else ():
            node = node["properties"][part]
        node["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in rules]
    status = structural(Status)
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {
        "type": "object",
        "description": (RAPJob.__doc__ or "").strip(),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


if __name__ == "__main__":
    sys.stdout.write("# Generated by `python -m rap_contract.crd`; change the contract, not this file.\n")
    sys.stdout.write(yaml_text(definition()))
