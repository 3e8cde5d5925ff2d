"""What the reader process and the training process tell each other, over a private socket pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rap_trainer.stream.dead_letters import BadRow
from rap_trainer.stream.kafka.ring import Room
from rap_trainer.stream.kafka.settings import TopicSettings

if TYPE_CHECKING:  # the reader process does without torch
    import numpy as np
    import numpy.typing as npt

    from rap_trainer.stream.rows import Int64s

Place = tuple[int, int]
"""Offset of a message, and row in it: the next one to read."""


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """What a reader process must know. No secret is in it: those are read from files."""

    settings: TopicSettings
    part: int
    num_parts: int
    """The topic's partitions go round among so many readers."""
    start: Mapping[int, Place]
    """By partition."""
    has_start: bool
    """There are positions of this topic, maybe of other ranks: a partition without one is new."""
    topic_id: str
    """Of the topic that these positions belong to; empty: unknown."""
    types: pa.Schema
    """Wanted columns, and how text is parsed into them."""
    group: str
    """Consumer group that saved positions are committed to, for monitoring."""
    wait_s: float
    """For a broker and the topic to be there at the start."""
    ring_file: int


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Some messages of one partition, in order."""

    partition: int
    offsets_M: Int64s
    times_s_M: npt.NDArray[np.float64]
    """The messages' own timestamps; NaN without one."""
    num_rows_M: Int64s
    """Rows of each, the bad ones included; 0 for an empty message, 1 for one that cannot be read."""
    first_row: int
    """Rows of the first message that are left out before it: they were consumed before."""
    row_numbers: Int64s | None
    """Number in the frame of each row of the record batch; None: one by one."""
    bad: tuple[BadRow, ...]
    """`row` counts in the frame."""
    batch: Room | bytes | None
    """An Arrow IPC stream of one record batch; None: no row can be read."""
    num_bytes: int
    """Of the messages."""
    fetched_s: float
    """When it came from the broker; seconds since the epoch."""
    num_empty: int
    """Messages without content, such as a compacted topic's tombstones."""


@dataclass(frozen=True, kw_only=True)
class Started:
    """Partitions are read from here on: all of them at the beginning, new ones later."""

    places: Mapping[int, Place]
    lost: Mapping[int, int]
    """Messages by partition that retention deleted before they were read."""
    topic_id: str
    """Empty: unknown."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """By partition: the next offset to read, beyond gaps of compaction and transactions."""

    offsets: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The reader cannot go on."""

    message: str
    permanent: bool = True
    """Another attempt would not help."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """To the reader: a checkpoint holds these next offsets."""

    offsets: Mapping[int, int]
