"""The parts of kafka-python 3.0 that read and copy, in place of the library's own. See `fast_fetch.py`, which alone imports this."""

from __future__ import annotations

import ssl
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol import parser
from kafka.protocol.frame import KafkaBytes
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

READ_BYTES = 256 << 10  # of one read: 64 KB took 10 % longer, 1 MB no less time (here, 2026-11)


def install() -> None:
    """For all clients of this process. Raises AttributeError, and replaces nothing, if the library has other parts."""
    for owner, name in (
        (KafkaTCPTransport, "_sock_recv"),
        (parser, "KafkaBytes"),
        (memory_records, "DefaultRecordBatch"),
    ):
        getattr(owner, name)
    for transport in (KafkaTCPTransport, *KafkaTCPTransport.__subclasses__()):
        transport._sock_recv = _received
    parser.KafkaBytes = _Answer
    memory_records.DefaultRecordBatch = _RecordBatch


def _received(transport: Any) -> tuple[memoryview, Exception | None]:
    """What the socket holds, and what went wrong. In place of a transport's `_sock_recv`."""
    found: list[bytes] = []
    error: Exception | None = None
    try:
        while data := transport._sock.recv(READ_BYTES):
            found.append(data)
        error = KafkaConnectionError("socket disconnected")
    except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass  # that was all of it
    except Exception as failure:  # as the library has it: the connection ends with what went wrong
        error = KafkaConnectionError(failure)
    return memoryview(found[0] if len(found) == 1 else b"".join(found)), error


class _Answer(KafkaBytes):
    """A broker's answer while it comes in; read as a whole it is not copied."""

    _idx: int

    def read(self, nbytes: int | None = None) -> Any:
        if nbytes is not None:
            return super().read(nbytes)
        begin, self._idx = self._idx, len(self)
        return memoryview(self)[begin:]

    def write(self, data: memoryview) -> None:
        begin = self._idx
        self._idx += len(data)
        memoryview(self)[begin : self._idx] = data  # a bytearray's own slice is assigned by way of a copy


class _RecordBatch(DefaultRecordBatch):
    """A record batch that looks at the answer in place of a copy of it. A record's key and value are still copies."""

    _buffer: Any

    def __init__(self, buffer: memoryview) -> None:
        super().__init__(buffer[: self.HEADER_STRUCT.size])
        self._buffer = buffer

    def _read_msg(self) -> Any:
        try:
            return super()._read_msg()
        except AttributeError:  # a header's name is decoded in place, which only bytes can
            self._buffer = bytearray(self._buffer)
            return super()._read_msg()
