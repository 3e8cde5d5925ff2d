"""Why each launch exists and what shares it: the rows that `rap plan` prints. Pure; no device, no measurement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rap_contract.graph import FeatureGraph

from rap_trainer.fusion.groups import Groups, Launch, Tiles, group, rows_of_program, steps_of
from rap_trainer.fusion.lower import lower
from rap_trainer.fusion.stages import Comparison, Lane, Stage

REASONS = {
    "lanes": "one number a row each: whole chains in registers, any mix of chains in one launch",
    "scan": "lengths, offsets and totals of lists, before their elements can be placed",
    "select": "nulls collapsed and samples drawn: which elements remain is known only from the batch",
    "draws": "a draw depends on row, position, rate and salt alone: made once for all lists that share it",
    "bases": "where each feature begins in the output, from the totals, on the device",
    "values": "every element of these lists: one read, whole chain in registers, one write",
    "compare": "pairs of lists compared, one number a row, read by the lanes that follow",
}


@dataclass(frozen=True, kw_only=True)
class LaunchRow:
    """One launch as a table shows it."""

    number: int
    kernel: str
    wave: int
    num_features: int
    num_ops: int
    """Element functions applied; 0 for launches that only count."""
    functions: tuple[str, ...]
    structures: tuple[str, ...]
    work: str
    """How the launch is cut into pieces."""
    reason: str


def planned(graph: FeatureGraph, *, nullable: Collection[str] | None = None, padded: bool = False) -> Groups:
    """What a graph is grouped to on a GPU; by default every column may hold nulls."""
    return group(lower(graph, graph.columns if nullable is None else nullable, padded=padded), tiles=Tiles())


def explain(groups: Groups) -> tuple[LaunchRow, ...]:
    """The launches of a batch in order."""
    return tuple(_row(number, launch, groups) for number, launch in enumerate(groups.launches))


def _row(number: int, launch: Launch, groups: Groups) -> LaunchRow:
    reason = REASONS["draws" if launch.draws else launch.kernel]
    if launch.kernel == "values" and not all(kind in ("same", "fill_rows", "null_rows") for kind in launch.structures):
        reason += "; apart, because finding their elements takes twice the registers"
    if launch.picked:
        reason += "; apart, because what a selection picked lies in order"
    if launch.float64:
        reason += "; apart, because its floats are float64"
    return LaunchRow(
        number=number,
        kernel=launch.kernel,
        wave=launch.wave,
        num_features=len(launch.features),
        num_ops=sum(len(steps_of(fusion)) for fusion in _fusions(launch, groups)),
        functions=launch.step_names,
        structures=launch.structures,
        work=_work(launch, groups),
        reason=reason,
    )


def _fusions(launch: Launch, groups: Groups) -> tuple[Lane | Stage | Comparison, ...]:
    """The fusions whose elements a launch computes."""
    if launch.kernel == "lanes":
        return groups.lanes[launch.first : launch.end]
    if launch.kernel == "values":
        skipped = len(groups.raw_lists)
        return groups.stages[launch.first - skipped : launch.end - skipped]
    return ()


def _work(launch: Launch, groups: Groups) -> str:
    number, tiles = launch.end - launch.first, groups.tiles
    bundles = launch.bundles
    together = (
        f", {sum(map(len, bundles))} of them in {len(bundles)} bundles of neighbouring dense columns" if bundles else ""
    )
    return {
        "lanes": f"{number} lanes in tiles of {tiles.lane} rows, costly chains first{together}",
        "scan": f"{number} lists, {tiles.scan} rows at a time",
        "draws": f"{number} draws of {tiles.draw[1]} positions a row, {tiles.draw[0]} rows at a time",
        "select": f"{number} lists in groups of {tiles.select[0]} rows, {tiles.select[1]} elements at a time",
        "bases": f"{number} lists, one program",
        "values": f"{number} lists in groups of {rows_of_program(launch, tiles)} rows, {tiles.select[1]} elements at a time",
        "compare": f"{number} pairs of lists, {tiles.compare} elements of a row at a time",
    }["draws" if launch.draws else launch.kernel]
