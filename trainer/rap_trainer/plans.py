"""The preprocessing plans of SEMANTICS as RAPJobs, and batches of their shape.

Plans 0-3 are the RAP paper's, plan 4 is what production looks like: many lists, all ops. A generator
for tests and benchmarks; nothing in a real job depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rap_contract.job import API_VERSION, KIND

from rap_trainer.plans_wide import wide_columns, wide_features
from rap_trainer.synthetic_batch import MEAN_LENGTH, synthetic_batch

__all__ = ["MEAN_LENGTH", "plan_job", "synthetic_batch"]

# fmt: off
KAGGLE_ROWS = (  # rows of Criteo Kaggle's 26 tables, as in the paper's plan 0
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
TERABYTE_ROWS = (  # rows of Criteo Terabyte's 26 tables, as in the paper's plan 1
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10,
    2209, 11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)
# fmt: on
OTHER_ROWS = 65_536  # rows of every other table of plans 0-3, as in the paper
ROUNDS = 4  # of plans 2 and 3, as in the paper's artifact
NUM_INTS, NUM_CATS = 13, 26

Document = dict[str, Any]


def plan_job(
    number: int, *, path: str = "events", max_rows: int | None = None, dim: int = 128, batch_size: int = 4096
) -> Document:
    """The RAPJob of plan 0-4 over Parquet files at `path`; `max_rows` caps every table to fit a small machine (256 at least for plan 4)."""
    if number not in range(5):
        raise ValueError(f"plans are 0 to 4, got {number}")
    features = {0: _criteo(KAGGLE_ROWS), 1: _criteo(TERABYTE_ROWS)}.get(number) or (
        _rounds(number) if number < 4 else wide_features()
    )
    for feature in features:
        if "table" in feature:
            feature["table"] = _table(feature["table"], max_rows, dim)
    scalars = {"label": "int32", f"int_{{0..{NUM_INTS - 1}}}": "float32", f"cat_{{0..{NUM_CATS - 1}}}": "list<int64>"}
    bottom, top = ([512, 256], [1024, 1024, 512, 256, 1]) if dim > 64 else ([64], [64, 1])
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"plan-{number}", "annotations": {MEAN_LENGTH: "20" if number == 4 else "1"}},
        "spec": {
            "source": {"files": {"path": path, "format": "parquet"}},
            "columns": wide_columns() if number == 4 else scalars,
            "label": "label",
            "features": features,
            "model": {"dlrm": {"bottom": [*bottom, dim], "top": top}},
            "optimizer": {"dense": {"sgd": {"lr": 0.1}}, "embedding": {"rowwiseAdagrad": {"lr": 0.02}}},
            "trainer": {"batchSizePerGpu": batch_size},
            "checkpoint": {"path": "checkpoints"},
        },
    }


def _table(table: Document, max_rows: int | None, dim: int) -> Document:
    def cap(rows: int) -> int:
        return rows if max_rows is None else min(rows, max_rows)

    rows = table["rows"]
    return {**table, "rows": cap(rows) if isinstance(rows, int) else [cap(each) for each in rows], "dim": dim}


def _criteo(rows: Sequence[int]) -> list[Document]:
    """Plans 0 and 1: 13 dense features, 26 sparse ones and the 27th, int_0 in buckets."""
    fill = {"fillNull": {"value": 0}}
    return [
        {"columns": [f"int_{{0..{NUM_INTS - 1}}}"], "ops": [fill, {"logit": {"eps": 1e-5}}]},
        {
            "columns": [f"cat_{{0..{NUM_CATS - 1}}}"],
            "ops": [fill, {"sigridHash": {"salt": 0}}, {"firstx": {"count": 1}}],
            "table": {"rows": list(rows)},
        },
        {
            "name": "int_0_bucket",
            "columns": ["int_0"],
            "ops": [{"bucketize": {"borders": [0.5, 1.0, 1.5]}}],
            "table": {"rows": OTHER_ROWS},
        },
    ]


def _rounds(number: int) -> list[Document]:
    """Plans 2 and 3: every column two or four times, each time with another chain of four rounds.

    Chains that come back to a column with the same ops differ in a constant, so that they stay apart.
    """
    dense = {"logit": 7, "boxcox": 9, "onehot": 10} if number == 2 else {"logit": 16, "boxcox": 21, "onehot": 15}
    sparse = (
        {"hash": 11, "clamp": 16, "firstx": 12, "ngram": 13}
        if number == 2
        else {"hash": 25, "clamp": 28, "firstx": 25, "ngram": 26}
    )
    return [*_assigned("int", NUM_INTS, dense), *_assigned("cat", NUM_CATS, sparse)]


def _assigned(prefix: str, num_columns: int, kinds: dict[str, int]) -> list[Document]:
    """Kinds dealt to columns in turn; neighbours of one kind in one pass over the columns form a group."""
    features: list[Document] = []
    index = 0
    for kind, number in kinds.items():
        done = 0
        while done < number:
            first = index % num_columns
            length = min(num_columns - first, number - done, num_columns - done % num_columns)
            feature: Document = {
                "name": f"copy{index // num_columns}_{{column}}",
                "columns": [f"{prefix}_{{{first}..{first + length - 1}}}"],
                "ops": [{"fillNull": {"value": 0}}, *(ROUNDS * _round(kind, prefix, done // num_columns))],
            }
            if length == 1:
                feature["columns"] = [f"{prefix}_{first}"]
            if prefix == "cat":
                feature["table"] = {"rows": OTHER_ROWS, **({"outOfRange": "zero"} if kind == "firstx" else {})}
            features.append(feature)
            index, done = index + length, done + length
    return features


def _round(kind: str, prefix: str, again: int) -> list[Document]:
    """One round of a chain; `again` counts its earlier uses on the same column."""
    first = {"firstx": {"count": 1}}
    classes = {"low": 0, "high": 16 + again, "classes": 5 if prefix == "int" else 8}
    rounds: dict[str, list[Document]] = {
        "logit": [{"logit": {"eps": 1e-5 * (1 + again)}}],
        "boxcox": [{"boxcox": {"lambda": 0.5 / (1 + again)}}],
        "onehot": [{"onehot": classes}, first],
        "hash": [{"sigridHash": {"salt": again}}],
        "clamp": [{"clamp": {"lo": 0, "hi": 16 + again}}],
        "firstx": [first],
        "ngram": [{"onehot": {**classes, "dtype": "int64"}}, {"ngram": {"size": 4}}, first],
    }
    return rounds[kind]
