"""Which rank reads which partition: a pure rule, without group membership and thus without rebalances."""

from __future__ import annotations

from collections.abc import Iterable


def own_partitions(partitions: Iterable[int], *, rank: int, world_size: int) -> list[int]:
    """Every `world_size`-th of the sorted partitions, from the rank's own number on.

    Topics only grow at the end, so a new partition moves no other one.
    """
    return sorted(partitions)[rank::world_size]


def unit_of(topic: str, partition: int) -> str:
    """The partition's name in positions."""
    return f"{topic}/{partition}"


def partition_of(unit: str, topic: str) -> int | None:
    """The partition that a unit of positions names; None for a unit of something else."""
    prefix, _, number = unit.rpartition("/")
    return int(number) if prefix == topic and number.isdecimal() else None


def identity_unit(topic: str, topic_id: str) -> str:
    """A unit without rows: which topic of this name the positions beside it belong to."""
    return f"{topic}@{topic_id}"


def identity_of(units: Iterable[str], topic: str) -> str:
    """The topic's id among units of positions; empty without one."""
    return next((unit.removeprefix(f"{topic}@") for unit in units if unit.startswith(f"{topic}@")), "")
