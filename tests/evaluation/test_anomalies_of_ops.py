"""Counters of odd values, added up over batches."""

from __future__ import annotations

import torch
from rap_trainer.evaluation import Anomalies


def test_counters_add_up_by_kind_and_begin_anew() -> None:
    anomalies = Anomalies()
    anomalies.update({"bucketize_nan": torch.tensor(2)})
    anomalies.update({"bucketize_nan": torch.tensor(3), "other": torch.tensor(1)})
    assert anomalies.take() == {"bucketize_nan": 5, "other": 1}
    assert anomalies.take() == {}


def test_a_counter_that_is_used_again_by_the_next_batch_keeps_its_value() -> None:
    anomalies, counter = Anomalies(), torch.tensor(2)
    for _ in range(3):
        anomalies.update({"bucketize_nan": counter})
        counter.fill_(7)
    assert anomalies.take() == {"bucketize_nan": 16}
    assert counter.item() == 7
