"""A RAPJob is checked as a whole: every fault with its place, at once."""

import pytest
from contract.valid_job import VALID, changed
from rap_contract.job import RAPJob
from rap_contract.problem import InvalidDocument, Problem, format_path
from rap_contract.validation import check_job


def problems_of(document: object) -> tuple[Problem, ...]:
    with pytest.raises(InvalidDocument) as caught:
        check_job(document)
    return caught.value.problems


def test_a_valid_job_becomes_a_frozen_value() -> None:
    job = check_job(VALID)
    assert isinstance(job, RAPJob)
    assert job.spec.trainer.world_size == 1
    with pytest.raises(ValueError, match="frozen"):
        job.spec.suspend = True  # type: ignore[misc]  # this is what is tested


def test_defaults_are_filled_in_and_survive_a_round_trip() -> None:
    job = check_job(VALID)
    again = check_job(job.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert again == job


CASES = {
    "not a mapping": ([], "(document)", "mapping"),
    "wrong kind": (changed("kind", "Job"), "kind", "RAPJob"),
    "no source": (changed("spec", "source", {}), "spec.source", "exactly one"),
    "two sources": (
        changed("spec", "source", "kafka", {"bootstrapServers": ["a:1"], "topic": "t"}),
        "spec.source",
        "exactly one",
    ),
    "unknown key": (changed("spec", "suspended", True), "spec.suspended", "unknown key"),
    "unknown op": (
        changed("spec", "features", 0, "ops", 0, {"fillnull": {"value": 0}}),
        "spec.features[0].ops[0].fillnull",
        "unknown key",
    ),
    "a key by its Python name": (
        changed("spec", "restart_policy", {"maxRestarts": 1}),
        "spec.restart_policy",
        "did you mean `restartPolicy`",
    ),
    "an op's parameter by its Python name": (
        changed("spec", "features", 1, "ops", 2, {"firstx": {"n": 1}}),
        "spec.features[1].ops[2].firstx.n",
        "unknown key",
    ),
    "two ops in a step": (
        changed("spec", "features", 0, "ops", 0, {"fillNull": {"value": 0}, "logit": {"eps": 0.1}}),
        "spec.features[0].ops[0]",
        "one op a step",
    ),
    "parameter out of bounds": (
        changed("spec", "features", 0, "ops", 1, "logit", "eps", 0.7),
        "spec.features[0].ops[1].logit.eps",
        "less than",
    ),
    "missing table dim": (
        changed("spec", "features", 1, "table", "dim", ...),
        "spec.features[1].table.dim",
        "required",
    ),
    "dim no multiple of 4": (
        changed("spec", "features", 1, "table", "dim", 10),
        "spec.features[1].table.dim",
        "multiple",
    ),
    "rows per column": (
        changed("spec", "features", 1, "table", "rows", [100]),
        "spec.features[1].table.rows",
        "column",
    ),
    "unknown column": (changed("spec", "features", 0, "columns", 0, "int_9"), "spec.features[0].columns", "int_9"),
    "unknown column type": (changed("spec", "columns", "label", "int8"), "spec.columns.label", "int8"),
    "unknown label": (changed("spec", "label", "clicked"), "spec.label", "clicked"),
    "sparse without a table": (changed("spec", "features", 1, "table", ...), "spec.features[1]", "table"),
    "dense null": (changed("spec", "features", 0, "ops", 0, ...), "spec.features[0]", "null"),
    "op on a wrong type": (
        changed("spec", "features", 0, "ops", 1, {"sigridHash": {"salt": 0, "maxValue": 10}}),
        "spec.features[0].ops[1]",
        "float32",
    ),
    "hash beyond the table": (
        changed("spec", "features", 1, "ops", 1, {"sigridHash": {"salt": 0, "maxValue": 1000}}),
        "spec.features[1].table.rows",
        "999",
    ),
    "bottom does not end in dim": (
        changed("spec", "model", "dlrm", "bottom", [32, 8]),
        "spec.features[1].table.dim",
        "bottom MLP's last size 8",
    ),
    "top does not end in 1": (changed("spec", "model", "dlrm", "top", [32, 2]), "spec.model.dlrm.top[1]", "1"),
    "captured without a GPU": (changed("spec", "trainer", {"runtime": "captured"}), "spec.trainer.runtime", "GPU"),
    "csv without names": (
        changed("spec", "source", {"files": {"path": "/d", "format": "csv", "csv": {"header": False}}}),
        "spec.source.files.csv.columnNames",
        "header",
    ),
    "a fill value that is no number": (
        changed("spec", "features", 0, "ops", 0, {"fillNull": {"value": "zero"}}),
        "spec.features[0].ops[0].fillNull.value",
        "number",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_names_its_place(case: str) -> None:
    document, path, word = CASES[case]
    found = problems_of(document)
    assert any(format_path(p.path).startswith(path) and word in f"{p.message} {p.hint} {p.value}" for p in found), [
        str(p) for p in found
    ]


def test_all_faults_of_a_document_are_said_at_once() -> None:
    document = changed("spec", "features", 0, "columns", 0, "int_9")
    document["spec"]["label"] = "clicked"
    document["spec"]["model"]["dlrm"]["top"] = [32, 2]
    assert {format_path(p.path) for p in problems_of(document)} >= {
        "spec.features[0].columns",
        "spec.label",
        "spec.model.dlrm.top[1]",
    }


def test_a_typing_error_suggests_the_nearest_key() -> None:
    (problem,) = problems_of(changed("spec", "features", 0, "ops", 0, {"fillnull": {"value": 0}}))[:1]
    assert "fillNull" in problem.hint
