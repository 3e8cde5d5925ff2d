"""Known vulnerabilities of what the images hold: pip-audit over the lock file's closure of each extra.

python tests/security/audit.py [operator] [trainer-cpu] [trainer-cuda]      exit code 1 if there are any
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("operator", "trainer-cpu", "trainer-cuda")


def pins(extra: str) -> list[str]:
    """`name==version` of all packages an extra brings, markers ignored."""
    with (ROOT / "uv.lock").open("rb") as lock:
        packages: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in tomllib.load(lock)["package"]}
    rap = packages["rap"]
    wanted = [entry["name"] for entry in [*rap["dependencies"], *rap["optional-dependencies"][extra]]]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += [entry["name"] for entry in packages[name].get("dependencies", [])]
    return sorted(f"{name}=={packages[name]['version']}" for name in found if "version" in packages[name])


def audit(extra: str) -> int:
    """Runs pip-audit over an extra's packages; its exit code."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(pins(extra)) + "\n")
        requirements.flush()
        command = [str(Path(sys.executable).parent / "pip-audit"), "--requirement", requirements.name, "--no-deps"]
        print(f"{extra}: {len(pins(extra))} packages", flush=True)
        return subprocess.run([*command, "--disable-pip", "--progress-spinner=off", "--strict"], check=False).returncode


if __name__ == "__main__":
    sys.exit(max(audit(extra) for extra in sys.argv[1:] or EXTRAS))
