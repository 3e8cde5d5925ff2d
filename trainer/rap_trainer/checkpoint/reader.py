"""Finds the newest sound checkpoint of a job and loads it, on any number of ranks.

Every byte is compared with the manifest's checksums before it is used. Nothing is unpickled but
torch.distributed.checkpoint's index, by an unpickler that knows only the index's own classes; tensors are read with
`weights_only`.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from rap_trainer.batch import Position
from rap_trainer.checkpoint.errors import CheckpointError, Damaged, Incompatible, OtherJob
from rap_trainer.checkpoint.layout import JobIdentity, Manifest, check_file, checkpoints, read_manifest
from rap_trainer.checkpoint.rank_state import RankState, file_name, merged_positions, read_rank_state
from rap_trainer.checkpoint.tensors import Tensors
from rap_trainer.world import World

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A verified checkpoint."""

    directory: Path
    manifest: Manifest
    ranks: tuple[RankState, ...]
    """Of each rank that wrote it."""
    passed_over: tuple[str, ...]
    """Why newer checkpoints were not used."""

    @property
    def positions(self) -> Mapping[str, Position]:
        """Of the whole stream."""
        return merged_positions(self.ranks)


def find(root: Path, identity: JobIdentity, world: World) -> Found | None:
    """The newest sound checkpoint, or None for a fresh start. Collective. Raises OtherJob, Damaged."""
    usable = _from_first(world, lambda: candidates(root, identity))
    passed_over: list[str] = []
    for directory in usable:
        try:
            manifest, ranks = _verified(directory, world)
        except Damaged as damage:
            passed_over.append(str(damage))
            if world.rank == 0:
                log.warning("checkpoint %s is damaged and passed over: %s", directory.name, damage)
            continue
        return Found(directory=directory, manifest=manifest, ranks=ranks, passed_over=tuple(passed_over))
    if passed_over:
        hint = "restore one from a backup, or change spec.restartNonce to start anew"
        raise Damaged(f"all {len(passed_over)} checkpoints in {root} are damaged ({'; '.join(passed_over)}); {hint}")
    return None


def load(found: Found, tensors: Tensors, world: World) -> None:
    """Fills `tensors` in place from a checkpoint of any number of ranks. Collective. Raises Incompatible, Damaged."""
    reader = _Reader(found.directory)
    _check_compatible(reader.read_metadata(), tensors, found, world)
    try:
        dcp.load(
            cast(dict[str, Any], dict(tensors)),
            storage_reader=reader,
            planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=world.checkpoint_group,
        )
    except CheckpointException as error:
        rank, (cause, _) = next(iter(sorted(error.failures.items())))
        raise Damaged(f"{found.directory} cannot be loaded: rank {rank}: {cause}") from error


def candidates(root: Path, identity: JobIdentity) -> list[Path]:
    """Checkpoints that may be of this job, newest first. Raises OtherJob, CheckpointError."""
    try:
        directories = checkpoints(root)
    except OSError as error:
        raise CheckpointError(f"cannot read {root}: {error.strerror}; see spec.checkpoint.path") from error
    usable: list[Path] = []
    for directory in directories:
        try:
            job = read_manifest(directory).job
        except Damaged:
            usable.append(directory)
            continue
        if (job.name, job.source) != (identity.name, identity.source):
            hint = "give this job its own spec.checkpoint.path"
            mine, theirs = f"{identity.name!r} ({identity.source})", f"{job.name!r} ({job.source})"
            raise OtherJob(f"{directory} was written by job {theirs}, not by {mine}; {hint}")
        if job.nonce == identity.nonce:
            usable.append(directory)
        else:
            log.info("checkpoint %s is of restartNonce %d and left behind", directory.name, job.nonce)
    return usable


def _verified(directory: Path, world: World) -> tuple[Manifest, tuple[RankState, ...]]:
    """Checks a share of the files on each rank. Collective. Raises Damaged everywhere."""
    problem: str | None = None
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(directory)
        for index, (name, digest) in enumerate(sorted(manifest.files.items())):
            if index % world.size == world.rank:
                check_file(directory, name, digest)
        for rank in range(manifest.world_size):
            if file_name(rank) not in manifest.files:
                raise Damaged(f"{directory} lists no {file_name(rank)}")
    except Damaged as damage:
        problem = str(damage)
    problems: list[str | None] = [problem] * world.size
    dist.all_gather_object(problems, problem, group=world.checkpoint_group)
    found = next((text for text in problems if text is not None), None)
    if found is not None:
        raise Damaged(found)
    assert manifest is not None
    try:
        return manifest, tuple(read_rank_state(directory, rank) for rank in range(manifest.world_size))
    except (OSError, ValueError, KeyError) as error:
        raise Damaged(f"{directory}: a rank's state cannot be read: {error}") from error


def _check_compatible(metadata: Metadata, tensors: Tensors, found: Found, world: World) -> None:
    """Every tensor of the job is in the checkpoint with its shape and type, and the other way round."""
    problem = next((text for name, tensor in tensors.items() if (text := _mismatch(metadata, name, tensor))), None)
    gathered: list[tuple[str | None, set[str]]] = [(None, set())] * world.size
    dist.all_gather_object(gathered, (problem, set(tensors)), group=world.checkpoint_group)
    problem = next((text for text, _ in gathered if text is not None), None)
    if problem is None:
        extra = set(metadata.state_dict_metadata) - {name for _, names in gathered for name in names}
        if extra:
            problem = f"{min(extra)} of the checkpoint is in no part of the job's model: a feature or table was removed"
    if problem is not None:
        hint = "restore that part of the job, or change spec.restartNonce to start anew"
        raise Incompatible(f"{found.directory} does not fit the job: {problem}; {hint}")


def _mismatch(metadata: Metadata, name: str, tensor: torch.Tensor | Any) -> str | None:
    saved = metadata.state_dict_metadata.get(name)
    if saved is None:
        return f"{name} is not in the checkpoint: a table, layer or optimizer was added or renamed"
    if not isinstance(saved, TensorStorageMetadata):
        return f"{name} is no tensor in the checkpoint"
    if tuple(saved.size) != tuple(tensor.size()):
        return f"{name} has shape {list(tensor.size())} in the job, {list(saved.size)} in the checkpoint"
    if saved.properties.dtype != tensor.dtype:
        return f"{name} is {tensor.dtype} in the job, {saved.properties.dtype} in the checkpoint"
    return None


def _from_first(world: World, make: Callable[[], T]) -> T:
    """What rank 0 makes, on every rank; what it raises, everywhere."""
    made: list[T | CheckpointError | None] = [None]
    if world.rank == 0:
        try:
            made = [make()]
        except CheckpointError as error:
            made = [error]
    dist.broadcast_object_list(made, src=0, group=world.checkpoint_group)
    if isinstance(made[0], CheckpointError):
        raise made[0]
    return cast(T, made[0])


class _IndexUnpickler(pickle.Unpickler):
    """Knows the classes of torch.distributed.checkpoint's index, and nothing that could run code."""

    _ALLOWED = {
        "torch.distributed.checkpoint.metadata": {
            *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
            *("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        },
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
        "torch": {"Size", "float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"},
        "torch.serialization": {"_get_layout"},
        "collections": {"OrderedDict"},
        "pathlib": {"PosixPath"},
    }

    def find_class(self, module: str, name: str) -> Any:
        if name not in self._ALLOWED.get(module, set()):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint's index")
        return super().find_class(module, name)


class _Reader(dcp.FileSystemReader):
    """torch's reader, with an index that is read safely."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                metadata = _IndexUnpickler(file).load()
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
            raise Damaged(f"{path} cannot be read: {error}") from error
        if not isinstance(metadata, Metadata):
            raise Damaged(f"{path} holds {type(metadata).__name__}")
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = dcp.metadata.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
