"""Every partition has one reader, and growing topics move none."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rap_trainer.stream.kafka.assignment import own_partitions, partition_of, unit_of


@settings(deadline=None, max_examples=50)  # a busy machine is no fault
@given(st.integers(1, 200), st.integers(0, 50), st.integers(1, 16))
def test_each_partition_is_read_by_one_rank_and_stays_there_as_the_topic_grows(
    partitions: int, more: int, world_size: int
) -> None:
    before = [own_partitions(range(partitions), rank=rank, world_size=world_size) for rank in range(world_size)]
    after = [own_partitions(range(partitions + more), rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sorted(p for mine in before for p in mine) == list(range(partitions))
    for old, new in zip(before, after, strict=True):
        assert new[: len(old)] == old
        assert max(map(len, before)) - min(map(len, before)) <= 1


def test_units_name_partitions_of_their_topic_alone() -> None:
    assert partition_of(unit_of("a/b.c", 12), "a/b.c") == 12
    assert partition_of("other/1", "a") is None
    assert partition_of("part-1.parquet", "a") is None
