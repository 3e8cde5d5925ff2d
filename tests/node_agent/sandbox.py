"""One container as a local process: its own root (an overlay of this machine), mounts, PIDs and host name.

Images are not unpacked: the root file system is this machine's, with a private writable layer over
it and the volumes bound at their real paths. Users and capabilities are not changed (runAsUser has
no meaning without an image), memory limits are not enforced; `kill(signal)` stands in for the kernel.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from servers.processes import spawn

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEFAULT_SHM_BYTES = 64 * 2**20  # what container runtimes give a container without a volume at /dev/shm


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of this machine at a path inside the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerCommand:
    """What to run and where, with nothing left to look up."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    hostname: str
    working_dir: str = "/"
    mounts: Sequence[Mount] = ()
    read_only_root: bool = False
    network: Sequence[str] = field(default_factory=tuple)  # a command prefix that enters the pod's network


def setup_script(command: ContainerCommand, layer: Path) -> str:
    """Return the shell script that builds the root below `layer` and becomes the command in it."""
    root = shlex.quote(str(layer / "root"))
    lines = [
        "set -e",
        f"hostname {shlex.quote(command.hostname)}",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={layer}/upper,workdir={layer}/work {root}",
        f"mount -t proc proc {root}/proc",
        f"mount -t sysfs sysfs {root}/sys",
        f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
        f"mkdir {root}/dev/shm {root}/dev/pts",
        f"mount -t tmpfs -o size={DEFAULT_SHM_BYTES} tmpfs {root}/dev/shm",
        f"mount -t devpts -o newinstance,ptmxmode=0666 devpts {root}/dev/pts",
        f"ln -s pts/ptmx {root}/dev/ptmx && ln -s /proc/self/fd {root}/dev/fd",
        f"ln -s fd/0 {root}/dev/stdin && ln -s fd/1 {root}/dev/stdout && ln -s fd/2 {root}/dev/stderr",
        f"for device in {' '.join(DEVICES)}; do touch {root}/dev/$device",
        f"mount --bind /dev/$device {root}/dev/$device; done",
        f"for device in /dev/nvidia*; do [ -c $device ] || continue; touch {root}$device",
        f"mount --bind $device {root}$device; done",
    ]
    for mount in sorted(command.mounts, key=lambda mount: mount.target.count("/")):  # parents before children
        lines += _mount_lines(mount, root)
    if command.read_only_root:
        lines.append(f"mount -o remount,ro,bind {root}")
    inside = 'cd "$1" && shift && exec "$@"'
    lines.append(f'exec chroot {root} /bin/sh -c {shlex.quote(inside)} sh {shlex.quote(command.working_dir)} "$@"')
    return "\n".join(lines)


def _mount_lines(mount: Mount, root: str) -> list[str]:
    source, target = shlex.quote(str(mount.source)), '"$target"'
    make = f"mkdir -p {target}" if mount.source.is_dir() else f'mkdir -p "${{target%/*}}" && touch {target}'
    lines = [
        # Links such as /var/run are resolved inside the new root, or they would lead back to this machine.
        f"target={root}$(chroot {root} realpath -m -- {shlex.quote(mount.target)})",
        f"[ -e {target} ] || {{ {make}; }}",
        f"mount --bind {source} {target}",
    ]
    if mount.read_only:
        lines.append(f"mount -o remount,ro,bind {target}")
    return lines


class Container:
    """A started container; `on_exit` is called, in a thread of its own, once it has ended."""

    def __init__(self, command: ContainerCommand, *, folder: Path, log_path: Path, on_exit: Callable[[], None]) -> None:
        self._layer = folder / "layer"
        shutil.rmtree(self._layer, ignore_errors=True)
        for name in ("root", "upper", "work"):
            (self._layer / name).mkdir(parents=True)
        script = setup_script(command, self._layer)
        isolate = ["unshare", "--mount", "--uts", "--ipc"]
        self._process = spawn(
            [*command.network, *isolate, "sh", "-c", script, "sh", *command.arguments],
            log_path=log_path,
            environment=command.environment,
            as_first_process=True,
        )
        self._on_exit = on_exit
        threading.Thread(target=self._reap, daemon=True, name=f"reap-{self._process.pid}").start()

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal when a signal ended it, as container runtimes say it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    @property
    def pid(self) -> int:
        """Process id, as seen from outside, of the container's process 1."""
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to process 1; when that ends, the kernel ends all others with it."""
        self._process.send_signal(number)

    def freeze(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT to every process in the container."""
        pending = [self.pid]
        while pending:
            pid = pending.pop()
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pending += [int(child) for child in _read(children).split()]

    def wait(self, limit_s: float) -> bool:
        """Wait for the end; False when it still runs after `limit_s`."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _reap(self) -> None:
        self._process.wait()
        shutil.rmtree(self._layer, ignore_errors=True)
        self._on_exit()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
