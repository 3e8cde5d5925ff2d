"""Reads the tensors of checkpoints, to compare models."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from rap_trainer.checkpoint.layout import checkpoints, read_manifest
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def newest(folder: Path) -> Path:
    """The newest complete checkpoint of a job in `folder`."""
    return next(path for path in checkpoints(folder / "checkpoints") if (path / "COMMIT").exists())


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole."""
    reader = dcp.FileSystemReader(directory)
    saved = reader.read_metadata().state_dict_metadata
    found = {
        name: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        for name, entry in saved.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    assert found.keys() == saved.keys()
    dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, newest first."""
    return [read_manifest(path).step for path in checkpoints(folder / "checkpoints")]


def assert_equal(mine: Path, theirs: Path, *, tolerance: float = 0.0) -> None:
    """Both checkpoints hold the same tensors; `tolerance` is absolute, 0 means bit for bit."""
    left, right = tensors(mine), tensors(theirs)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        if tolerance:
            difference = (tensor.double() - right[name].double()).abs().max().item() if tensor.numel() else 0.0
            assert difference <= tolerance, f"{name} differs by {difference}"
        else:
            assert torch.equal(tensor, right[name]), name
