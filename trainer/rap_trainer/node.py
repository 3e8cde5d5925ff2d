"""Which node of an attempt this machine is, as the operator tells its pods; a machine of its own without that.

Only arithmetic and names: ranks are started by `launch.py` and meet in `world.py`.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from rap_contract.pod import ENV_NODE_INDEX, ENV_NODES, ENV_RENDEZVOUS

PORTS = range(12_000, 18_000)
"""Where the ranks of a machine of its own meet: below what Linux gives outgoing connections by default (32768 and up), one of which could take
such a port before the first rank listens, and the others would wait for it."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine with some of the ranks."""

    index: int
    num_nodes: int
    ranks_per_node: int
    address: str
    """Where all ranks meet."""
    port: int

    @classmethod
    def given(cls, environment: Mapping[str, str], *, ranks_per_node: int) -> Node:
        """The node the environment describes; else the only one, with a free port. Raises ValueError."""
        address, _, port = environment.get(ENV_RENDEZVOUS, "").rpartition(":")
        num_nodes = int(environment.get(ENV_NODES, "1"))
        index = int(environment.get(ENV_NODE_INDEX, "0"))
        if num_nodes > 1 and not (address and 0 <= index < num_nodes):
            raise ValueError(f"{ENV_NODES}={num_nodes} needs {ENV_RENDEZVOUS}=host:port and {ENV_NODE_INDEX} below it")
        return cls(
            index=index if num_nodes > 1 else 0,
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            address=address if num_nodes > 1 else "127.0.0.1",
            port=int(port) if num_nodes > 1 else _free_port(),
        )

    def environment(self, local_rank: int) -> dict[str, str]:
        """What torchrun would tell a rank of this node."""
        return {
            "RANK": str(self.index * self.ranks_per_node + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.num_nodes * self.ranks_per_node),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def _free_port() -> int:
    """One of PORTS that nobody listens on. Raises OSError if there is none."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {PORTS.start} to {PORTS.stop - 1} for the ranks to meet at")
