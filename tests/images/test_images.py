"""The images' Dockerfiles: clean, pinned, and their stages make a folder that works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from images.stages import PlainFolder, Stage, stages
from operator_world.on_server import port_of, read_page
from servers.cache import cache_root

ROOT = Path(__file__).resolve().parents[2]
FILES = {name: ROOT / name / "Dockerfile" for name in ("operator", "trainer")}
BOTH = pytest.mark.parametrize("name", FILES)
# python:3.12.14-slim-bookworm, all layers unpacked, as `docker images` shows images of that line.
BASE_BYTES = 126_000_000
MAX_OPERATOR_BYTES = 200_000_000
"""Of all layers, unpacked."""


def uv_folder() -> Path:
    """Where `make` keeps its uv, or where this machine has one."""
    own = sorted(cache_root().parent.glob("uv-*/bin/uv"))
    found = own[-1] if own else Path(shutil.which("uv") or "")
    assert found.is_file(), "no uv: `make install` brings one"
    return found.parent


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the builds copy from: the tree as it is now, whatever is edited meanwhile."""
    folder = tmp_path_factory.mktemp("context")
    for name in ("pyproject.toml", "uv.lock", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in FILES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return folder


def built(name: str, root: Path, context: Path, **arguments: str) -> PlainFolder:
    found = stages(FILES[name])
    builder = next(stage for stage in found if stage.name == "builder")
    path = f"{uv_folder()}:{Path(sys.base_exec_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    folder = PlainFolder(root, context, path=path, arguments={"UV_PYTHON": sys.executable, **arguments})
    folder.build(builder)
    return folder


@BOTH
def test_hadolint_finds_nothing(name: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    said = subprocess.run([str(hadolint), str(FILES[name])], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@BOTH
def test_every_base_is_pinned_by_version_and_digest(name: str) -> None:
    for stage in stages(FILES[name]):
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", stage.base), stage.base


@BOTH
def test_the_image_runs_as_nobody_and_says_what_it_is(name: str) -> None:
    final = stages(FILES[name])[-1]
    assert final.all("USER") == ["65532:65532"]
    labels = " ".join(final.all("LABEL"))
    for label in ("title", "description", "licenses", "version", "revision", "source"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert not [text for keyword, text in final.instructions if keyword == "ADD"]


@BOTH
def test_nothing_of_the_build_is_in_the_image(name: str) -> None:
    final = stages(FILES[name])[-1]
    assert final.all("COPY") == ["--from=builder /opt/rap /opt/rap"]


def test_the_context_holds_what_the_files_copy() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for path in FILES.values():
        for stage in stages(path):
            for text in stage.all("COPY"):
                sources = [] if text.startswith("--from=") else text.split()[:-1]
                assert {source.split("/")[0] for source in sources} <= allowed


def final_stage(name: str) -> Stage:
    return stages(FILES[name])[-1]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory, context: Path) -> Iterator[PlainFolder]:
    """The operator image's /opt/rap in a folder."""
    root = tmp_path_factory.mktemp("operator-image")
    yield built("operator", root, context)
    shutil.rmtree(root, ignore_errors=True)


def test_the_operators_image_is_small_and_has_no_torch_and_no_trainer(operator: PlainFolder) -> None:
    assert BASE_BYTES + operator.size_bytes("/opt/rap") < MAX_OPERATOR_BYTES
    packages = next(Path(operator.moved("/opt/rap/lib")).glob("python3.*/site-packages"))
    names = {path.name for path in packages.iterdir()}
    assert {"rap_contract", "rap_planner", "rap_operator", "kubernetes"} <= names
    assert not names & {"torch", "rap_trainer", "numpy", "pyarrow", "aiohttp", "pytest", "mypy"}
    assert not (Path(operator.moved("/opt/rap/bin")) / "rap").exists()


def test_the_operators_image_starts_and_its_health_check_passes(operator: PlainFolder, tmp_path: Path) -> None:
    entry = final_stage("operator").command("ENTRYPOINT")
    binary = Path(operator.moved("/opt/rap/bin"))
    environment = {"PATH": f"{binary}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    said = subprocess.run(
        [str(binary / entry[0]), "--help"], capture_output=True, text=True, check=True, env=environment
    )
    assert "--namespaces" in said.stdout
    server = {"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}  # nobody: health does not need the API server
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    kubeconfig = {
        "clusters": [server],
        "contexts": [context],
        "users": [{"name": "x", "user": {}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    command = [str(binary / entry[0]), "--metrics-port=0", f"--kubeconfig={tmp_path / 'kubeconfig'}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        port = port_of(tmp_path / "log")
        assert read_page(port, "/healthz") == "ok\n"
        assert "rap_operator_info" in read_page(port, "/metrics")
        check = [word.replace(":8080", f":{port}") for word in final_stage("operator").command("HEALTHCHECK")]
        subprocess.run([str(binary / check[0]), *check[1:]], check=True, env=environment, timeout=30)
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_two_builds_of_the_operator_hold_the_same_files(operator: PlainFolder, context: Path, tmp_path: Path) -> None:
    again = built("operator", tmp_path, context)

    def listing(folder: PlainFolder) -> dict[str, bytes]:
        root = Path(folder.moved("/opt/rap"))
        moved = str(folder.root).encode()
        skipped = (".pyc", "direct_url.json", "RECORD", "uv_cache.json")  # say when or where they were made
        return {
            str(path.relative_to(root)): path.read_bytes().replace(moved, b"")
            for path in root.rglob("*")
            if path.is_file() and not path.is_symlink() and not path.name.endswith(skipped)
        }

    assert listing(again) == listing(operator)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_trainers_cpu_image_trains(context: Path, tmp_path: Path) -> None:
    folder = built("trainer", tmp_path, context, VARIANT="cpu", UV_LINK_MODE="hardlink")
    binary = Path(folder.moved("/opt/rap/bin"))
    names = {path.name for path in next(Path(folder.moved("/opt/rap/lib")).glob("python3.*/site-packages")).iterdir()}
    assert {"torch", "torchrec", "rap_trainer"} <= names
    assert not names & {"kubernetes", "rap_operator"}
    environment = {**os.environ, "PATH": f"{binary}:/usr/bin:/bin", "HOME": str(tmp_path)}
    for variable in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(variable, None)
    produce = ["rap", "produce", "--out", "events", "--rows", "2000"]
    subprocess.run(produce, cwd=tmp_path, env=environment, check=True)
    job = yaml.safe_load((ROOT / "manifests" / "samples" / "clicks-files.yaml").read_text())
    job["spec"]["source"]["files"]["follow"] = False
    job["spec"]["trainer"] = {"batchSizePerGpu": 128, "metricsPort": 0}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    entry = final_stage("trainer").command("ENTRYPOINT")
    done = subprocess.run(
        [*entry, "run", "job.yaml"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "package", ["torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton", "pyarrow", "pydantic-core"]
)
def test_the_lock_file_has_wheels_for_the_images_python(package: str) -> None:
    version = re.search(r"python:3\.(\d+)\.", stages(FILES["trainer"])[-1].base)
    assert version is not None
    with (ROOT / "uv.lock").open("rb") as lock:
        locked = {entry["name"]: entry for entry in tomllib.load(lock)["package"]}
    names = [wheel["url"].rpartition("/")[2] for wheel in locked[package].get("wheels", ())]
    fitting = [name for name in names if f"cp3{version[1]}" in name or f"py3{version[1]}" in name or "py3-none" in name]
    assert [name for name in fitting if "x86_64" in name or "-any" in name], names
