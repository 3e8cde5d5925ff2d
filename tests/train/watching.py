"""Watches a run from outside, by the files it writes."""

from __future__ import annotations

from pathlib import Path

from rap_trainer.checkpoint.layout import COMMIT, checkpoints


def steps_begun(ledger: Path, rank: int = 0) -> int:
    """Steps a rank has begun over all attempts, repeated ones included."""
    path = ledger / f"rank-{rank:05d}.jsonl"
    return path.read_text().count('"step"') if path.exists() else 0


def has_checkpoint(folder: Path) -> bool:
    """Whether a complete checkpoint is there."""
    return any((path / COMMIT).exists() for path in checkpoints(folder / "checkpoints"))
