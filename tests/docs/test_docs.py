"""The docs hold together: generated pages are fresh, the site builds strictly, YAML is valid, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rap_contract import job_document, metrics_document
from rap_contract.validation import check_job
from rap_trainer.cli import main as rap

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "charts" / "rap" / "README.md"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[object]:
    return [
        pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, (found, text) in enumerate(BLOCK.findall(page.read_text()))
        if found == language
    ]


@pytest.mark.parametrize(
    ("page", "module", "made"),
    [
        ("job-reference.md", "job_document", job_document.document),
        ("metrics.md", "metrics_document", metrics_document.document),
    ],
)
def test_a_generated_page_is_fresh(page: str, module: str, made: Callable[[], str]) -> None:
    hint = f"run: PYTHONPATH=operator python -m rap_contract.{module} > docs/{page}"
    assert (DOCS / page).read_text() == made(), hint


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_in_docs_is_valid(text: str) -> None:
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and document.get("kind") == "RAPJob":
            check_job(document)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_in_docs_parses(text: str) -> None:
    ast.parse(text)


@pytest.mark.parametrize("text", blocks("sh"))
def test_commands_in_docs_exist(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["make"]:
            assert set(words[1:]) <= targets, line
        if words[:1] == ["rap"]:
            with pytest.raises(SystemExit) as asked:
                rap([words[1], "--help"])
            assert asked.value.code == 0, line
            explained = capsys.readouterr().out
            assert [word for word in words if word.startswith("--") and word not in explained] == [], line
