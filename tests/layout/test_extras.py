"""What each extra installs, read from the lock file: the operator is light, the trainers conflict."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def locked_packages() -> dict[str, dict[str, Any]]:
    with (ROOT / "uv.lock").open("rb") as lock:
        return {package["name"]: package for package in tomllib.load(lock)["package"]}


def closure(extra: str) -> set[str]:
    """Names of all packages an extra brings, markers ignored."""
    packages = locked_packages()
    rap = packages["rap"]
    wanted = [d["name"] for d in [*rap["dependencies"], *rap["optional-dependencies"][extra]]]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [d["name"] for d in packages[name].get("dependencies", [])]
    return found


def test_the_operator_extra_brings_no_torch() -> None:
    brought = closure("operator")
    assert "kubernetes" in brought
    assert brought.isdisjoint({"torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow"})


def test_each_trainer_extra_brings_its_own_fbgemm_only() -> None:
    assert "fbgemm-gpu-cpu" in closure("trainer-cpu")
    assert "fbgemm-gpu" not in closure("trainer-cpu")
    assert "fbgemm-gpu" in closure("trainer-cuda")
    assert "fbgemm-gpu-cpu" not in closure("trainer-cuda")


def test_the_trainers_bring_no_kubernetes() -> None:
    assert "kubernetes" not in closure("trainer-cpu") | closure("trainer-cuda")
