"""Adding an op is adding its files: no list, registry or schema is edited by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

DECLARED = '''"""twice: two times x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rap_contract.ops.base import Op
from rap_contract.types import ValueType


class Twice(Op):
    """Two times x, and `plus`."""

    stem: ClassVar[str] = "twice"
    plus: float = Field(default=0, ge=-10, le=10)

    def output(self, value: ValueType, references: Mapping[str, ValueType]) -> ValueType:
        return value.with_(low=None, high=None)
'''
TWIN = '''"""twice: two times x."""

from __future__ import annotations

from rap_contract.ops.twice import Twice

from rap_trainer.ops.value import Context, References, Value, elements


def apply(op: Twice, value: Value, references: References, context: Context) -> Value:
    return value.with_values(2 * elements(value) + op.plus)
'''
USED = """
import json
import torch
from rap_contract.graph import compile_features
from rap_contract.job import RAPJobSpec
from rap_contract.crd import definition
from rap_contract.ops_document import document
from rap_trainer.batch import Column, RawBatch
from rap_trainer.program import Program

spec = RAPJobSpec.model_validate({
    "source": {"files": {"path": "events"}},
    "columns": {"label": "int32", "x": "float32", "cat": "list<int64>"},
    "label": "label",
    "features": [
        {"columns": ["x"], "ops": [{"fillNull": {"value": 1}}, {"twice": {"plus": 0.5}}]},
        {"columns": ["cat"], "ops": [{"positiveModulus": {"n": 8}}], "table": {"rows": 8, "dim": 4}},
    ],
    "model": {"dlrm": {"bottom": [4], "top": [1]}},
    "trainer": {"batchSizePerGpu": 2},
    "checkpoint": {"path": "unused"},
})
graph, problems = compile_features(spec)
assert graph is not None, problems
assert graph is not None, problems
nulls_B = torch.tensor([False, True])
columns = {
    "x": Column(values_N=torch.tensor([3.0, 0.0]), nulls_N=nulls_B),
    "cat": Column(values_N=torch.tensor([3, 9]), lengths_B=torch.ones(2, dtype=torch.int32)),
    "cat": Column(values_N=torch.tensor([3, 9]), lengths_B=torch.ones(2, dtype=torch.int32)),
    "label": Column(values_N=torch.tensor([0, 1], dtype=torch.int32)),
}
times_B = torch.zeros(2, dtype=torch.float64)
raw = RawBatch(columns=columns, row_ids_B=torch.arange(2), event_times_s_B=times_B, num_rows=2, global_rows=2)
print(json.dumps({
    "dense": Program(graph).run(raw).dense_BD.tolist(),
    "in_crd": chr(34) + "twice" + chr(34) in json.dumps(definition()),
    "in_document": "twice" in document(),
}))
"""


def test_two_files_of_one_stem_make_an_op_that_jobs_the_crd_and_the_document_know(tmp_path: Path) -> None:
    for package, folder in (("operator", "rap_contract"), ("trainer", "rap_trainer")):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package / folder, tmp_path / package / folder, ignore=ignored)
    (tmp_path / "operator/rap_contract/ops/twice.py").write_text(DECLARED)
    (tmp_path / "trainer/rap_trainer/ops/twice.py").write_text(TWIN)
    paths = os.pathsep.join(str(tmp_path / package) for package in ("operator", "trainer"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", USED], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"dense": [[6.5], [2.5]], "in_crd": True, "in_document": True}
