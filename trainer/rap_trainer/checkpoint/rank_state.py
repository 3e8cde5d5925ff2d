"""What belongs to one rank alone: where its part of the stream stands, and its random state. JSON, no pickle."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rap_trainer.batch import Position, Positions

RANK_FILE = re.compile(r"^rank-\d{5,}\.json$")


@dataclass(frozen=True, kw_only=True)
class RankState:
    """Saved by each rank beside its tensors."""

    positions: Positions
    random_state: bytes
    """Of torch's CPU generator: models with dropout continue the same sequence on the same number of ranks."""

    @classmethod
    def now(cls, positions: Positions) -> RankState:
        return cls(positions=dict(positions), random_state=torch.get_rng_state().numpy().tobytes())

    def restore_random_state(self) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(self.random_state), dtype=torch.uint8))


def file_name(rank: int) -> str:
    """Name of a rank's file in a checkpoint."""
    return f"rank-{rank:05d}.json"


def write_rank_state(directory: Path, rank: int, state: RankState) -> None:
    """Writes and syncs the file. Raises OSError."""
    document = {
        "positions": {unit: [p.offset, p.row] for unit, p in sorted(state.positions.items())},
        "random_state": base64.b64encode(state.random_state).decode(),
    }
    with (directory / file_name(rank)).open("w") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())


def read_rank_state(directory: Path, rank: int) -> RankState:
    """Reads what `write_rank_state` wrote. Raises OSError, ValueError."""
    document = json.loads((directory / file_name(rank)).read_text())
    return RankState(
        positions={unit: Position(offset, row) for unit, (offset, row) in document["positions"].items()},
        random_state=base64.b64decode(document["random_state"]),
    )


def merged_positions(states: Iterable[RankState]) -> Mapping[str, Position]:
    """Positions of all ranks together. Ranks that know the same unit agree on it; the first one's word is taken."""
    merged: dict[str, Position] = {}
    for state in states:
        for unit, position in state.positions.items():
            merged.setdefault(unit, position)
    return merged
