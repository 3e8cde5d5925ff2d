"""What is planned: features with their work in each fused kernel, kernels in order, and the ranks. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rap_contract.plan import FusedKernel
from rap_contract.problem import InvalidDocument, Problem

BUFFERS = 2  # raw and preprocessed batches alive at a time: one trains, one is preprocessed


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A feature's work in one kernel, for the rows of one rank."""

    kernel: int
    num_bytes: float
    ops: Mapping[str, float] = field(default_factory=dict)
    """Element functions applied, by name."""
    num_tiles: float = 1.0
    """Pieces of it that programs take in turn."""

    def times(self, factor: float) -> Piece:
        """The same work on so many times as much data."""
        return replace(
            self,
            num_bytes=self.num_bytes * factor,
            ops={name: count * factor for name, count in self.ops.items()},
            num_tiles=self.num_tiles * factor,
        )


@dataclass(frozen=True, kw_only=True)
class Item:
    """A feature, for the rows of one rank."""

    name: str
    group: str
    chain: str
    """Its ops, to be read by people."""
    pieces: tuple[Piece, ...]
    raw_bytes: float
    out_bytes: float
    owner: int | None = None
    """Rank that owns its table; None: dense, preprocessed where its rows are."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job as the planner sees it."""

    job: str
    items: tuple[Item, ...]
    kernels: tuple[FusedKernel, ...]
    """Depend on each other in this order."""
    idle_seconds: tuple[float, ...]
    """By rank: how much earlier than the slowest rank it would finish, because its tables ask less of it."""
    reserved_bytes: tuple[float, ...] = ()
    """By rank: memory taken by tables, dense part and activations."""
    memory_bytes: float = float("inf")
    """Of a rank."""
    origins: tuple[int, ...] = ()
    """The program's launch that each kernel is a part of; empty: each is a launch of its own."""

    @property
    def num_ranks(self) -> int:
        return len(self.idle_seconds)

    def scaled(self, factor: float) -> Task:
        """The same job over data `factor` times as large."""
        items = tuple(
            replace(
                item,
                raw_bytes=item.raw_bytes * factor,
                out_bytes=item.out_bytes * factor,
                pieces=tuple(piece.times(factor) for piece in item.pieces),
            )
            for item in self.items
        )
        return replace(self, items=items)

    def cut(self, kernels: Sequence[FusedKernel]) -> Task:
        """The same job with its launches in these parts. Raises ValueError if they are not parts of them, in order."""
        origins: list[int] = []
        left: list[str] = []
        for kernel in kernels:
            if not left:
                origins.append(origins[-1] + 1 if origins else 0)
                if origins[-1] >= len(self.kernels):
                    raise ValueError(f"{len(kernels)} kernels are more than the parts of {len(self.kernels)} launches")
                left = list(self.kernels[origins[-1]].features)
            else:
                origins.append(origins[-1])
            part = kernel.features
            if kernel.stage != self.kernels[origins[-1]].stage or tuple(left[: len(part)]) != part:
                raise ValueError(f"kernel {kernel.launch} is no part of launch {origins[-1]}")
            left = left[len(part) :]
        if left or len(set(origins)) != len(self.kernels):
            raise ValueError(f"{len(kernels)} kernels do not make up {len(self.kernels)} launches")
        place = {(origin, name): number for number, origin in enumerate(origins) for name in kernels[number].features}
        first = {origin: number for number, origin in reversed(list(enumerate(origins)))}
        items = tuple(
            replace(
                item,
                pieces=tuple(
                    replace(piece, kernel=place.get((piece.kernel, item.name), first[piece.kernel]))
                    for piece in item.pieces
                ),
            )
            for item in self.items
        )
        before = self.origins or tuple(range(len(self.kernels)))
        return replace(self, items=items, kernels=tuple(kernels), origins=tuple(before[each] for each in origins))

    def split(self, kernel: int, at: int) -> Task:
        """One kernel as two: its first `at` features, and the others."""
        whole = self.kernels[kernel]
        parts = [whole.features[:at], whole.features[at:]]
        kernels = [
            *self.kernels[:kernel],
            *(whole.model_copy(update={"features": part}) for part in parts),
            *self.kernels[kernel + 1 :],
        ]
        return self.cut([each.model_copy(update={"launch": number}) for number, each in enumerate(kernels)])

    def check(self) -> None:
        """Raises InvalidDocument for a task without ranks, with unknown kernels or owners, or that fits no memory."""
        problems = []
        if not self.idle_seconds:
            problems.append(Problem(path=("ranks",), message="a job needs at least one rank"))
        for item in self.items:
            if item.owner is not None and not 0 <= item.owner < self.num_ranks:
                problems.append(
                    Problem(path=("features", item.name), message="its table belongs to no rank of the job")
                )
            if any(not 0 <= piece.kernel < len(self.kernels) for piece in item.pieces):
                problems.append(Problem(path=("features", item.name), message="works in a kernel that does not exist"))
        for rank, need in enumerate(self.memory(frozenset())):
            if need > self.memory_bytes:
                message = f"needs {need / 2**30:.1f} GiB of rank {rank}, which has {self.memory_bytes / 2**30:.1f}"
                hint = "more ranks, smaller tables, or a smaller batchSizePerGpu"
                problems.append(Problem(path=("spec", "trainer"), message=message, hint=hint))
                break
        if problems:
            raise InvalidDocument(problems)

    def memory(self, owned: frozenset[int]) -> tuple[float, ...]:
        """Bytes each rank needs if the items of these indices are preprocessed by their owners."""
        reserved = self.reserved_bytes or (0.0,) * self.num_ranks
        everywhere = sum(i.raw_bytes + i.out_bytes for n, i in enumerate(self.items) if n not in owned)
        sizes = [bytes_ + BUFFERS * everywhere for bytes_ in reserved]
        for index in sorted(owned):
            item = self.items[index]
            assert item.owner is not None
            sizes[item.owner] += BUFFERS * self.num_ranks * (item.raw_bytes + item.out_bytes)
        return tuple(sizes)
