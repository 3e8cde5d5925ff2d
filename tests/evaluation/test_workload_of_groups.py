"""Mean list length and null share, by feature group."""

from __future__ import annotations

import torch
from rap_contract.features import Feature
from rap_trainer.batch import Column, RawBatch
from rap_trainer.evaluation import Workload, group_columns
from rap_trainer.evaluation.workload import MAX_GROUPS, OTHERS, SAMPLE_EVERY


def scalar(values: list[float | None]) -> Column:
    nulls = torch.tensor([value is None for value in values])
    return Column(values_N=torch.tensor([value or 0.0 for value in values]), nulls_N=nulls if nulls.any() else None)


def jagged(lists: list[list[int]]) -> Column:
    values = torch.tensor([value for row in lists for value in row], dtype=torch.int64)
    return Column(values_N=values, lengths_B=torch.tensor([len(row) for row in lists], dtype=torch.int32))


def batch(num_rows: int, **columns: Column) -> RawBatch:
    return RawBatch(
        columns=columns,
        row_ids_B=torch.arange(num_rows),
        event_times_s_B=torch.zeros(num_rows, dtype=torch.float64),
        num_rows=num_rows,
        global_rows=num_rows,
    )


def test_lengths_and_nulls_are_means_over_the_columns_of_a_group() -> None:
    workload = Workload({"ints": ["a", "b"], "cats": ["c", "missing"]})
    workload.update(batch(2, a=scalar([1.0, None]), b=scalar([2.0, 3.0]), c=jagged([[1, 2, 3], []])))
    ints, cats = workload.take()
    assert (ints.group, ints.mean_list_length, ints.null_ratio) == ("ints", None, 0.25)
    assert (cats.group, cats.mean_list_length, cats.null_ratio) == ("cats", 1.5, 0.0)


def test_a_reading_begins_anew_and_knows_nothing_without_rows() -> None:
    workload = Workload({"cats": ["c"]})
    workload.update(batch(1, c=jagged([[1]])))
    workload.take()
    (load,) = workload.take()
    assert (load.mean_list_length, load.null_ratio) == (None, None)


def test_one_batch_in_so_many_is_looked_at() -> None:
    workload = Workload({"cats": ["c"]})
    for i in range(2 * SAMPLE_EVERY):
        workload.update(batch(1, c=jagged([[1] * (8 if i % SAMPLE_EVERY == 0 else 1)])))
    assert workload.take()[0].mean_list_length == 8


def test_groups_are_the_entries_of_the_job() -> None:
    features = [
        Feature(columns=["int_{0..2}"]),
        Feature(columns=["cat_0", "cat_{1..2}"]),
        Feature(columns=["int_0"], name="bucket"),
    ]
    assert group_columns(features) == {
        "int_{0..2}": ("int_0", "int_1", "int_2"),
        "cat_0": ("cat_0", "cat_1", "cat_2"),
        "bucket": ("int_0",),
    }


def test_a_job_of_many_entries_has_a_bounded_number_of_groups() -> None:
    groups = group_columns([Feature(columns=[f"c{i}"]) for i in range(3 * MAX_GROUPS)])
    assert len(groups) == MAX_GROUPS + 1
    assert len(groups[OTHERS]) == 2 * MAX_GROUPS
