"""The workflows: actions pinned by commit, least permissions, nothing of an event pasted into a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.rendering import CHART

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ALL = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job.get("steps", ())]


@ALL
def test_actions_are_pinned_by_commit(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "uses:" in line and "uses: ./" not in line:
            assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v[\d.]+$", line), line


@ALL
def test_permissions_are_named_and_read_only_by_default(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for job in jobs(path).values():
        assert job.get("permissions", {}).get("contents", "read") == "read"


@ALL
def test_no_expression_is_pasted_into_a_shell(path: Path) -> None:
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


@ALL
def test_every_shell_step_is_valid_shell(path: Path) -> None:
    for step in steps(path):
        if "run" in step:
            done = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


@ALL
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    text = path.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w[\w-]*)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for script in re.findall(r"python (\S+\.py)", text):
        assert (ROOT / script).exists(), script


def test_a_release_signs_and_proves_everything_it_pushes() -> None:
    found = jobs(ROOT / ".github" / "workflows" / "release.yml")
    for name in ("images", "chart"):
        text = yaml.safe_dump(found[name])
        assert "cosign sign --yes" in text
        assert "actions/attest-build-provenance@" in text
        assert found[name]["permissions"]["id-token"] == "write"
    assert "--sbom=true --provenance=mode=max" in yaml.safe_dump(found["images"], width=10_000)
    assert found["images"]["needs"] == "test"
    assert "helm push" in yaml.safe_dump(found["chart"])


@pytest.mark.usefixtures("helm")
def test_the_chart_can_be_packaged_with_the_crd_inside(tmp_path: Path) -> None:
    import tarfile

    from chart.rendering import helm

    helm("package", str(CHART), "--version", "1.2.3", "--app-version", "1.2.3", "--destination", str(tmp_path))
    with tarfile.open(tmp_path / "rap-1.2.3.tgz") as package:
        crd = package.extractfile("rap/files/crd.yaml")
        assert crd is not None
        assert crd.read() == (ROOT / "manifests" / "crd" / "rapjobs.rap.dev.yaml").read_bytes()
