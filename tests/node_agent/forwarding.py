"""Forwards connections of listening sockets (made inside pods' networks) to the same port of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 2**18


class Forwarding:
    """One event loop in a thread of its own, for all pods of an agent."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: dict[socket.socket, asyncio.Server] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="pod-forwarding")

    def start(self) -> None:
        """Begin to forward."""
        self._thread.start()

    def stop(self) -> None:
        """End every connection and the thread."""
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def serve(self, listener: socket.socket) -> None:
        """Forward what connects to `listener`."""
        asyncio.run_coroutine_threadsafe(self._serve(listener), self._loop).result(10.0)

    def end(self, listener: socket.socket) -> None:
        """Close `listener`; connections end with the pod's processes."""
        self._loop.call_soon_threadsafe(self._servers.pop(listener).close)

    async def _serve(self, listener: socket.socket) -> None:
        port: int = listener.getsockname()[1]

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                host_reader, host_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()  # nobody listens there now: refuse, as the server's absence would
                return
            await asyncio.gather(_pump(reader, host_writer), _pump(host_reader, writer))

        self._servers[listener] = await asyncio.start_server(forward, sock=listener, limit=CHUNK_BYTES)

    async def _end_all(self) -> None:
        for server in self._servers.values():
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        writer.close()
