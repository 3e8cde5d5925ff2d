"""Known vulnerabilities of what the images hold: the lock file's closure of each extra, held against advisories.

    python tests/security/audit.py [operator] [trainer-cpu] [trainer-cuda]      exit code 1 if there are any
    python tests/security/audit.py --advisories FOLDER                          where no service can be asked

Without a folder pip-audit asks the package index. The folder is a checkout of PyPA's advisory database: as good as it is
recent.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

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


def found_in(advisories: Path, pinned: Sequence[str]) -> list[str]:
    """`name==version: id` of every advisory in a folder of OSV files (vulns/NAME/*.yaml) that names a pinned version."""
    found = []
    for pin in pinned:
        name, _, version = pin.partition("==")
        for path in sorted((advisories / "vulns" / name).glob("*.yaml")):
            advisory = yaml.safe_load(path.read_text())
            if "withdrawn" not in advisory and any(_affects(part, version) for part in advisory["affected"]):
                found.append(f"{pin}: {advisory['id']}")
    return found


def _affects(part: dict[str, Any], version: str) -> bool:
    ranges = [each["events"] for each in part.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
    return version in part.get("versions", ()) or any(_is_within(events, Version(version)) for events in ranges)


def _is_within(events: Sequence[dict[str, str]], version: Version) -> bool:
    """Whether the last event up to a version introduces the fault, as OSV defines a range."""
    bounds = [(Version(text), kind) for event in events for kind, text in event.items() if kind != "limit"]
    past = [kind for bound, kind in sorted(bounds) if bound < version or (bound == version and kind != "last_affected")]
    return bool(past) and past[-1] == "introduced"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if anything is known against any of the packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"of {', '.join(EXTRAS)}; default: all")
    parser.add_argument("--advisories", type=Path, help="checkout of the advisory database, in place of a service")
    options = parser.parse_args(arguments)
    extras = options.extras or EXTRAS
    if options.advisories is None:
        return max(audit(extra) for extra in extras)
    if not (options.advisories / "vulns").is_dir():
        parser.error(f"{options.advisories} has no folder vulns: it is no checkout of the advisory database")
    pinned = sorted({pin for extra in extras for pin in pins(extra)})
    found = found_in(options.advisories, pinned)
    print("\n".join([f"{len(pinned)} packages, {len(found)} known vulnerabilities", *found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
