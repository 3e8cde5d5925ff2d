"""The network of pods: each has a network namespace and an address of its own, on a bridge of this machine.

So two pods can listen on the same port, as on real nodes, and whatever runs on this machine reaches
a pod by its address. The other way round, servers that tests start on loopback (API server, Kafka)
appear on the loopback of every pod: the ports named to the agent are forwarded.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from node_agent.forwarding import Forwarding
from servers.processes import system_call

CLONE_NEWNET = 0x40000000  # linux/sched.h
BRIDGE_PREFIX = "pods"  # followed by the agent's process id and a letter, within 15 characters
T = TypeVar("T")

# Namespaces are a property of threads: one thread does all the switching, and always switches back.
_switcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="netns")


@dataclass(frozen=True, kw_only=True)
class PodAddress:
    """A pod's place in the network. The namespace lives while its file descriptor is open."""

    address: str
    namespace_fd: int
    listeners: Sequence[socket.socket]

    @property
    def command_prefix(self) -> list[str]:
        """What runs a command in the pod's network."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace_fd}"]


class PodNetwork:
    """A bridge with a subnet 10.R.0.0/16, R drawn so that agents on one machine rarely meet."""

    def __init__(self, host_ports: Iterable[int] = ()) -> None:
        self._subnet = f"10.{random.SystemRandom().randint(64, 250)}"
        self._bridge = f"{BRIDGE_PREFIX}{os.getpid()}{random.SystemRandom().choice('abcdefghijkl')}"
        self._host_ports = list(host_ports)
        self._forwarding = Forwarding()
        self._lock = threading.Lock()
        self._num_given = 0
        self._links = itertools.count(1)

    @property
    def node_ip(self) -> str:
        """The address of this machine as pods see it."""
        return f"{self._subnet}.0.1"

    def start(self) -> None:
        """Make the bridge, and remove those that killed agents have left behind."""
        for stale in Path("/sys/class/net").glob(f"{BRIDGE_PREFIX}*"):
            owner = "".join(filter(str.isdigit, stale.name))
            if owner and not Path(f"/proc/{owner}").exists():
                _run("ip", "link", "delete", stale.name)
        _run("ip", "link", "add", self._bridge, "type", "bridge", "forward_delay", "0")
        _run("ip", "address", "add", f"{self.node_ip}/16", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        self._forwarding.start()

    def stop(self) -> None:
        """Remove the bridge; the pods are gone already."""
        self._forwarding.stop()
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "delete", self._bridge)

    def attach(self, address: str | None = None) -> PodAddress:
        """Make a namespace with an address of its own, or with the one the pod had before."""
        address = address or self._next_address()
        namespace_fd = _switcher.submit(_new_namespace).result()
        inside = f"/proc/{os.getpid()}/fd/{namespace_fd}"
        outer = f"v{os.getpid() % 100_000}-{next(self._links) % 1_000_000}"  # never one that is still going away
        peer = ["peer", "name", "eth0", "netns", inside]
        _run("ip", "link", "add", outer, "up", "master", self._bridge, "type", "veth", *peer)
        script = (
            f"ip link set lo up && ip address add {address}/16 dev eth0 && ip link set eth0 up"
            f" && ip route add default via {self.node_ip}"
        )
        _run("nsenter", f"--net={inside}", "sh", "-c", script)
        listeners = _switcher.submit(_within, namespace_fd, self._listen).result()
        for listener in listeners:
            self._forwarding.serve(listener)
        return PodAddress(address=address, namespace_fd=namespace_fd, listeners=listeners)

    def detach(self, place: PodAddress) -> None:
        """Give the namespace up; the kernel removes it, and its link, with its last process."""
        for listener in place.listeners:
            self._forwarding.end(listener)
        os.close(place.namespace_fd)

    def _next_address(self) -> str:
        with self._lock:
            self._num_given += 1
            third, fourth = divmod(self._num_given % 60_000, 250)
        return f"{self._subnet}.{third}.{fourth + 2}"

    def _listen(self) -> list[socket.socket]:
        return [socket.create_server(("127.0.0.1", port), backlog=128) for port in self._host_ports]


def _new_namespace() -> int:
    """Return a descriptor of a new network namespace; this thread ends where it began."""
    with Path("/proc/thread-self/ns/net").open() as home:
        system_call("unshare", CLONE_NEWNET)
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        finally:
            system_call("setns", home.fileno(), CLONE_NEWNET)


def _within(namespace_fd: int, action: Callable[[], T]) -> T:
    with Path("/proc/thread-self/ns/net").open() as home:
        system_call("setns", namespace_fd, CLONE_NEWNET)
        try:
            return action()
        finally:
            system_call("setns", home.fileno(), CLONE_NEWNET)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
