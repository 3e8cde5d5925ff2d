"""`rap score`: a file of events with the click probability of each, by a published model."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
from rap_contract.pod import ExitCode

from rap_trainer.batch import ModelBatch
from rap_trainer.preprocess import rewrite, told
from rap_trainer.serving.scorer import Scorer
from rap_trainer.serving.version import NoModel

PROBABILITY = "probability"


def score_file(model: Path, source: Path, output: Path) -> int:
    """Writes one row for each good event of `source`, in order: probability float32, and the label where there is one.

    Says what it did; returns an exit code.
    """
    try:
        scorer = Scorer.load(model)
    except NoModel as error:
        print(f"rap score: {error}", file=sys.stderr)
        return ExitCode.INVALID
    job = scorer.job

    def schema(has_label: bool) -> pa.Schema:
        fields = [(PROBABILITY, pa.float32())]
        return pa.schema([*fields, (job.spec.label, pa.float32())] if has_label else fields)

    def table(batch: ModelBatch, has_label: bool) -> pa.Table:
        columns = [pa.array(scorer.score(batch).numpy())]
        if has_label:
            columns.append(pa.array(batch.labels_B.numpy()))
        return pa.Table.from_arrays(columns, schema=schema(has_label))

    return told(
        "rap score",
        job,
        source,
        output,
        lambda: rewrite(job, scorer.program, source, output, schema=schema, table=table),
    )
