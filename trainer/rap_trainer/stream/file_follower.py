"""The reader thread of a rank whose node's first rank reads the files: fills the backlog with what that one made."""

from __future__ import annotations

import threading

from rap_trainer.stream.backlog import Backlog
from rap_trainer.stream.catalogue import Record
from rap_trainer.stream.chunk_message import End
from rap_trainer.stream.node_sharing import ChunkReceiver, Sharing


class FileFollower:
    """Offers what FileReader does; knows no file by itself."""

    def __init__(self, sharing: Sharing, backlog: Backlog) -> None:
        self._backlog = backlog
        self._receiver = ChunkReceiver(sharing)
        self._thread = threading.Thread(target=self._run, name="rap-file-follower", daemon=True)

    def start(self) -> None:
        """Begins to take."""
        self._thread.start()

    def join(self) -> None:
        """Returns when the thread has ended; close the backlog first."""
        self._receiver.stop()
        if self._thread.is_alive():
            self._thread.join()

    def catalogued(self) -> dict[str, Record]:
        """Nothing: the node's first rank says it for all."""
        return {}

    def quarantined(self) -> dict[str, int]:
        """Nothing: the node's first rank counts for all."""
        return {}

    def _run(self) -> None:
        try:
            while not isinstance(value := self._receiver.receive(), End):
                if not self._backlog.put(value):
                    return
            self._backlog.end(value.error)
        except BaseException as error:  # handed to the training loop, which raises it
            self._backlog.end(error)
        finally:
            self._receiver.close()
