"""A server of the test suite as one local process that can be stopped, killed, paused and started again.

Every process is tied to this one by the kernel (parent-death signal), so nothing outlives pytest,
not even a pytest that was killed with SIGKILL.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from servers.waiting import wait_until

# The kernel sends the signal when the *thread* that forked ends, so one thread that lives as long as
# this process does all the forking: a test may restart a server from a thread of its own.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWPID = 0x20000000  # linux/sched.h; os.unshare came with Python 3.12

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes the port of a
# server while it is stopped.
PORT_RANGE = range(18000, 32000)
_taking, _taken = threading.Lock(), set[int]()


def spawn(
    command: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str] | None = None,
    as_first_process: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `command` with its output appended to `log_path`; it dies when this process does.

    `as_first_process` makes it process 1 of a PID namespace of its own, so that all its children die
    with it. (unshare --fork would do, but it reports a killed child as exit code 1.)
    """
    tied = ["setpriv", "--pdeathsig", "KILL", "--", *command]

    def start() -> subprocess.Popen[bytes]:
        with log_path.open("ab") as log:
            return subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    return (
        _spawner.submit(_in_new_pid_namespace, start).result() if as_first_process else _spawner.submit(start).result()
    )


def _in_new_pid_namespace(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Call `start` while children of this thread are born into a new PID namespace."""
    with Path("/proc/self/ns/pid").open() as own:
        system_call("unshare", CLONE_NEWPID)
        try:
            return start()
        finally:
            system_call("setns", own.fileno(), CLONE_NEWPID)


def system_call(name: str, *arguments: int) -> None:
    """Call a function of the C library that Python 3.11 lacks; raise OSError when it fails."""
    if _libc[name](*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)} (this takes root)")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port nobody listens on, for a server that is told its port on the command line; nobody is given it again.

    Three brokers take twelve before the first listens: two of them, or of two test workers, were once the same.
    """
    for port in random.SystemRandom().sample(PORT_RANGE, 200):
        with socket.socket() as probe:
            try:
                _take(port)
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port on {address} in {PORT_RANGE}")


def _take(port: int) -> None:
    """Locks the port's byte of a file of this user while this process lives. Raises BlockingIOError if somebody has it."""
    with _taking:
        if port in _taken:
            raise BlockingIOError
        fcntl.lockf(_port_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        _taken.add(port)


@functools.cache
def _port_file() -> int:
    return os.open(Path(tempfile.gettempdir()) / f"rap-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT)


def is_listening(port: int, address: str = "127.0.0.1") -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False


class ServerProcess:
    """One server: a command, where it logs, and how to tell that it is healthy."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        is_healthy: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        start_limit_s: float = 90.0,
        stop_limit_s: float = 15.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self._is_healthy = is_healthy
        self._environment = environment
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log_began_bytes = 0
        self.paused = False
        self.started_at_s = 0.0  # monotonic

    @property
    def running(self) -> bool:
        """Whether the process exists (it may be paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id, for tools that look from outside."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        """Start it (nothing happens when it runs already) and wait until it is healthy."""
        if not self.running:
            self._log_began_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
            self.started_at_s = time.monotonic()
            self._process = spawn(self.command, log_path=self.log_path, environment=self._environment)
        if wait:
            self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait for health; fail at once with the end of the log when the process has ended."""

        def healthy_or_ended() -> bool:
            return not self.running or self._is_healthy()

        try:
            wait_until(healthy_or_ended, limit_s=self._start_limit_s, what=f"{self.name} to be healthy")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; log:\n{self.log_tail()}") from None
        if not self.running:
            raise RuntimeError(f"{self.name} ended while starting; log:\n{self.log_tail()}")

    def stop(self) -> None:
        """Ask it to end with SIGTERM, and kill it when it has not after `stop_limit_s`."""
        if not self.running or self._process is None:
            return
        self.resume()  # a paused process would sit out the grace period
        self._process.terminate()
        try:
            self._process.wait(self._stop_limit_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self.paused = False
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: go on after `pause`."""
        self.paused = False
        self._signal(signal.SIGCONT)

    def recover(self) -> None:
        """Undo what a test may have left: go on when paused, start when ended."""
        if self.paused:
            self.resume()
        if not self.running:
            self.start()

    def restart(self) -> None:
        """Stop it and start it again on the same ports and data."""
        self.stop()
        self.start()

    def memory_bytes(self) -> int:
        """Resident memory."""
        resident: int = psutil.Process(self.pid).memory_info().rss
        return resident

    def has_logged(self, text: str) -> bool:
        """Whether `text` is in the log since its last start."""
        if not self.log_path.exists():
            return False
        with self.log_path.open("rb") as log:
            log.seek(self._log_began_bytes)
            return text.encode() in log.read()

    def log_tail(self, num_lines: int = 30) -> str:
        """Return the end of its log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-num_lines:])

    def _signal(self, number: int) -> None:
        if self.running and self._process is not None:
            self._process.send_signal(number)
