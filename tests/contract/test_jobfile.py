"""From a YAML file to a job: problems carry the line they stand on."""

from pathlib import Path

import pytest
import yaml
from contract.valid_job import VALID
from rap_contract.pod import ExitCode
from rap_contract.problem import InvalidDocument
from rap_trainer.cli import main
from rap_trainer.jobfile import load_job

TEXT = yaml.safe_dump(VALID, sort_keys=False)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_valid_file_gives_a_job(tmp_path: Path) -> None:
    assert load_job(written(tmp_path, TEXT)).metadata.name == "clicks"


def test_a_problem_names_its_line(tmp_path: Path) -> None:
    text = TEXT.replace("eps: 1.0e-05", "eps: 0.7")
    line = next(i for i, content in enumerate(text.splitlines(), 1) if "eps: 0.7" in content)
    with pytest.raises(InvalidDocument) as caught:
        load_job(written(tmp_path, text))
    assert [p.line for p in caught.value.problems] == [line]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "0 YAML documents"),
        ("a: [1, 2", "not YAML"),
        ("\tkey: value", "not YAML"),
        ("- 1\n- 2", "mapping"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (TEXT + "---\n" + TEXT, "2 YAML documents"),
        (TEXT.replace("kind: RAPJob", "kind: RAPJob\nkind: RAPJob"), "given twice"),
        (
            "a: &a [x, x]\nb: &b [*a, *a]\n"
            + "".join(f"c{i}: &c{i} [{', '.join(['*b' if i == 0 else f'*c{i - 1}'] * 10)}]\n" for i in range(9)),
            "aliases",
        ),
        ("[" * 5000, "nested too deeply"),
    ],
    ids=["empty", "broken flow", "tab", "a list", "not text", "two documents", "key twice", "alias bomb", "deep"],
)
def test_malformed_text_is_refused_with_a_reason(tmp_path: Path, text: str | bytes, word: str) -> None:
    with pytest.raises(InvalidDocument, match=word):
        load_job(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="No such file"):
        load_job(tmp_path / "none.yaml")


def test_validate_prints_every_problem_and_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TEXT.replace("eps: 1.0e-05", "eps: 0.7").replace("name: clicks", "name: Clicks"))
    assert main(["validate", str(path)]) == ExitCode.INVALID
    printed = capsys.readouterr().err
    assert "spec.features[0].ops[1].logit.eps (line " in printed
    assert "metadata.name (line " in printed
    assert printed.rstrip().endswith("2 problems")


def test_validate_can_print_the_completed_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(written(tmp_path, TEXT)), "--print-crd-defaults"]) == ExitCode.DONE
    completed = yaml.safe_load(capsys.readouterr().out)
    assert completed["spec"]["checkpoint"]["keep"] == 3
