"""Guards the folders that would break imports, and the names nothing may have."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"operator", "trainer", "charts", "manifests", "tests", "docs"}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(line) for line in listing.splitlines() if (ROOT / line).exists()]


@pytest.mark.parametrize("folder", ["operator", "trainer", "tests"])
def test_a_component_folder_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_under_tests_is_a_package() -> None:
    assert [f for f in tracked_files() if f.parts[0] == "tests" and f.name == "__init__.py"] == []


def test_the_standard_library_operator_wins_from_the_repository_root() -> None:
    program = "import operator, collections; print(operator.itemgetter)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "operator.itemgetter" in done.stdout


def test_top_level_folders_are_the_agreed_ones() -> None:
    folders = {f.parts[0] for f in tracked_files() if len(f.parts) > 1 and not f.parts[0].startswith(".")}
    assert folders <= TOP_LEVEL


def test_no_file_collects_what_has_no_name() -> None:
    refused = {"utils.py", "helpers.py", "common.py", "misc.py", "manager.py"}
    assert [f for f in tracked_files() if f.name in refused] == []


def test_python_files_stay_under_the_hard_stop() -> None:
    def num_lines(file: Path) -> int:
        return (ROOT / file).read_text().count("\n")

    assert [f"{f}: {num_lines(f)}" for f in tracked_files() if f.suffix == ".py" and num_lines(f) > 400] == []


def test_test_files_have_unique_names() -> None:
    names = [f.name for f in tracked_files() if f.parts[0] == "tests" and f.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
