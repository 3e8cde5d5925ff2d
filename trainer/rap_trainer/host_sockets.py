"""Where ranks of one host meet: the first opens a door under a name of this host alone, the others knock.

Sockets that keep packets apart (SOCK_SEQPACKET); a rank that dies closes its own, so the others know at once. Not here:
what is said over them, and ranks of several hosts.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable

MEETING_S = 60.0  # for all ranks to connect; they have just met over TCP
_KNOCK_S = 0.01
_LOOK_S = 0.1  # for whether it is still worth waiting
Gone = Callable[[], bool]


def opened(address: str, *, guests: int) -> socket.socket:
    """A door for so many other ranks of this host. Raises OSError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        door.bind(f"\0{address}")
        door.listen(guests)
    except OSError:
        door.close()
        raise
    return door


def admitted(door: socket.socket, guests: int, *, gone: Gone = lambda: False) -> list[socket.socket]:
    """The sockets of ranks 1 to `guests`, in order, once all have come; the door is closed. `gone` ends the waiting.

    Strangers are turned away. Raises OSError.
    """
    found: dict[int, socket.socket] = {}
    until_s = time.monotonic() + MEETING_S
    with door:
        door.settimeout(_LOOK_S)
        while len(found) < guests:
            try:
                peer, _ = door.accept()
            except TimeoutError:
                if time.monotonic() >= until_s or gone():
                    raise
                continue
            peer.settimeout(MEETING_S)
            _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            number = peer.recv(1) if user == os.getuid() else b""
            if number and 1 <= number[0] <= guests and number[0] not in found:
                peer.settimeout(None)
                found[number[0]] = peer
            else:
                peer.close()
    return [found[rank] for rank in range(1, guests + 1)]


def knocked(address: str, rank: int, *, gone: Gone = lambda: False) -> socket.socket:
    """The socket to the first rank, once it has opened its door; `gone` ends the waiting. Raises OSError."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until_s = time.monotonic() + MEETING_S
    while True:
        try:
            peer.connect(f"\0{address}")
            peer.send(bytes([rank]))
        except ConnectionRefusedError:
            if time.monotonic() >= until_s or gone():
                peer.close()
                raise
            time.sleep(_KNOCK_S)
        except OSError:
            peer.close()
            raise
        else:
            return peer
