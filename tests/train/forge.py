"""Starts `rap run` cheaply: one process imports TorchRec once and forks a launcher for each run.

    python tests/train/forge.py SOCKET          the server
    forge = Forge(socket); run = forge.start(job_path, num_ranks=2); run.wait()

Only the import is saved; launcher, ranks, signals and exit codes are the real ones. Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0  # importing TorchRec took 40 s on a laptop with nine other jobs
POLL_S = 0.02


class Run:
    """A launcher and its ranks."""

    def __init__(self, connection: socket.socket, output: Path) -> None:
        connection.settimeout(DEADLINE_S)
        self._connection = connection
        self._lines = connection.makefile()
        self.pid = int(json.loads(self._lines.readline())["pid"])
        self._output = output
        self.ended = False

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """The launcher's exit code."""
        self._connection.settimeout(timeout_s)
        code = int(json.loads(self._lines.readline())["code"])
        self._hang_up()
        return code

    def _hang_up(self) -> None:
        self.ended = True
        self._lines.close()
        self._connection.close()

    def close(self) -> None:
        """Kills what is left of it."""
        self._hang_up()
        pids = [self._find(rank) for rank in range(8)]
        for pid in (self.pid, *pids):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def send(self, number: int) -> None:
        """Sends a signal to the launcher, as a terminal or a kubelet would."""
        os.kill(self.pid, number)

    def kill_rank(self, rank: int) -> None:
        """kill -9 of a rank, which is started."""
        os.kill(self.rank_pid(rank), signal.SIGKILL)

    def freeze_rank(self, rank: int) -> None:
        """Stops a rank where it is; only SIGKILL and SIGCONT still reach it."""
        os.kill(self.rank_pid(rank), signal.SIGSTOP)

    def rank_pid(self, rank: int) -> int:
        """Waits for the rank to be there."""
        until(lambda: self._find(rank) is not None, f"rank {rank} runs")
        found = self._find(rank)
        assert found is not None
        return found

    def _find(self, rank: int) -> int | None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")
                    name = fields[0].partition("(")[2]
                    state, parent = fields[2].split()[:2]
                except OSError:
                    continue
                if name == f"rap-rank-{rank}" and int(parent) == self.pid and state != "Z":
                    return int(entry.name)
        return None


def until(true: object, what: str) -> None:
    """Waits until `true()`; fails after DEADLINE_S."""
    assert callable(true)
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(POLL_S)


class Forge:
    """The client; starts the server on the first run."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "forge.sock"
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._runs: list[Run] = []

    def start(
        self,
        job: Path,
        *,
        num_ranks: int,
        environment: dict[str, str] | None = None,
        largest_file_bytes: int | None = None,
        may_read_all: bool = True,
    ) -> Run:
        """`rap run JOB --nproc num_ranks --plain`, in a session of its own.

        `largest_file_bytes`: writing beyond is refused, as on a full disk. Without `may_read_all` root is refused what its
        own files forbid, as any user is.
        """
        if self._server is None:
            self._start_server()
        output = self._folder / f"run-{len(self._runs)}.txt"
        request = {
            "job": str(job),
            "ranks": num_ranks,
            "output": str(output),
            "environment": environment or {},
            "largest_file_bytes": largest_file_bytes,
            "may_read_all": may_read_all,
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._socket))
        connection.sendall((json.dumps(request) + "\n").encode())
        self._runs.append(Run(connection, output))
        return self._runs[-1]

    def _start_server(self) -> None:
        paths = [str(ROOT / name) for name in ("operator", "trainer", "tests")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen([sys.executable, __file__, str(self._socket)], env=environment)
        until(self._socket.exists, "the forge is ready")

    def close(self) -> None:
        """Ends the server and every run that is left."""
        for run in self._runs:
            if not run.ended:
                run.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()


def serve(path: Path) -> None:
    """Forks a launcher for each request; never returns."""
    import rap_trainer.train  # noqa: F401  # the import that is worth saving

    server = socket.socket(socket.AF_UNIX)
    aside = path.with_suffix(".tmp")
    server.bind(str(aside))
    server.listen(8)
    aside.rename(path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = server.accept()
        request = json.loads(connection.makefile().readline())
        if os.fork() == 0:
            server.close()
            _run(connection, request)
        connection.close()


def _run(connection: socket.socket, request: dict[str, object]) -> None:
    """In a child: forks the launcher and tells its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _launch(request)
    connection.sendall((json.dumps({"pid": pid}) + "\n").encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall((json.dumps({"code": code}) + "\n").encode())
    os._exit(0)


def _launch(request: dict[str, object]) -> None:
    os.setsid()
    output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    changes = request["environment"]
    assert isinstance(changes, dict)
    os.environ.update(changes)
    largest = request["largest_file_bytes"]
    if isinstance(largest, int):
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    if not request["may_read_all"]:
        _give_up_capabilities()
    from rap_trainer.cli import main

    code = 1
    try:
        code = main(["run", str(request["job"]), "--nproc", str(request["ranks"]), "--plain"])
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _give_up_capabilities() -> None:
    """capset(2): root without a capability is held to the permissions of its files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
