"""The CPU's own table optimizers against FBGEMM's fused ones, where both exist; a GPU test compares the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen, PoolingMode
from rap_contract.pod import ExitCode
from rap_trainer.model import shard
from rap_trainer.model.optimizers import has_fused_kernel
from rap_trainer.model.row_optimizers import _Kernel
from rap_trainer.train import train
from train.saved_state import assert_equal, newest
from train.small_jobs import document, small_job, write_events


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwiseAdagrad"])
def test_the_cpu_optimizer_equals_the_fused_one(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(tmp_path, rows=160)
    changes = {
        "source": {"files": {"path": str(tmp_path / "events")}},
        "optimizer": {"dense": {"sgd": {"lr": 0.1}}, "embedding": {name: {"lr": 0.1}}},
    }
    assert train(small_job(tmp_path / "fused", **changes)).code == ExitCode.DONE
    monkeypatch.setattr(shard, "has_fused_kernel", lambda spec, device: False)
    assert train(small_job(tmp_path / "rows", **changes)).code == ExitCode.DONE
    assert_equal(newest(tmp_path / "fused"), newest(tmp_path / "rows"), tolerance=1e-5)


def test_means_of_weighted_lists_are_not_left_to_the_cpu_kernel_that_forgets_their_lengths(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    features = document(tmp_path)["spec"]["features"]
    assert has_fused_kernel(small_job(tmp_path).spec, cpu)
    features[1]["table"]["pooling"] = "mean"
    assert has_fused_kernel(small_job(tmp_path, features=features).spec, cpu)
    features[1]["weights"] = "weight"
    columns = {"label": "int32", "int_{0..2}": "float32", "cat_{0..2}": "list<int64>", "weight": "list<float32>"}
    assert not has_fused_kernel(small_job(tmp_path, features=features, columns=columns).spec, cpu)


LENGTHS: dict[str, list[list[int]]] = {
    "lists": [[2, 0, 3], [1, 1, 1], [0, 4, 1]],
    "nothing": [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    "no rows": [[], [], []],
}


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("pooling", [PoolingMode.SUM, PoolingMode.MEAN], ids=["sum", "mean"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_lookup_pools_as_fbgemm_does_and_its_gradients_are_of_the_touched_rows(
    lengths: str, pooling: PoolingMode, weighted: bool
) -> None:
    torch.manual_seed(0)
    fbgemm = DenseTableBatchedEmbeddingBagsCodegen(
        [(7, 4), (5, 8)], feature_table_map=[0, 0, 1], pooling_mode=pooling, use_cpu=True
    )
    flat = [length for feature in LENGTHS[lengths] for length in feature]
    offsets = torch.tensor([0, *flat]).cumsum(0)
    indices = torch.randint(0, 5, (sum(flat),))
    scores = torch.rand(sum(flat)) if weighted else None
    kernel = _Kernel(module=fbgemm, tables=("a", "b"))
    given = kernel.lookup(indices, offsets, scores)
    assert given.shape == (len(LENGTHS[lengths][0]), 4 + 4 + 8)
    if lengths == "no rows":
        return
    expected = fbgemm(indices, offsets, scores)
    torch.testing.assert_close(given, expected)
    towards = torch.rand_like(given)
    (given * towards).sum().backward()  # type: ignore[no-untyped-call]  # untyped in torch
    assert fbgemm.weights.grad is None
    if weighted and pooling is PoolingMode.MEAN:  # what FBGEMM's own backward forgets there
        towards = towards / torch.tensor(LENGTHS[lengths]).clamp(min=1).T.repeat_interleave(
            torch.tensor([4, 4, 8]), dim=1
        )
    (expected * towards).sum().backward()
    whole = [torch.zeros(7, 4), torch.zeros(5, 8)]
    for table, rows, gradients in kernel.gradients():
        assert rows.tolist() == sorted(set(rows.tolist()))
        whole[table][rows] = gradients
    assert fbgemm.weights.grad is not None
    torch.testing.assert_close(torch.cat([each.flatten() for each in whole]), fbgemm.weights.grad)


def test_rows_of_two_lookups_before_a_step_get_the_sum_of_their_gradients() -> None:
    fbgemm = DenseTableBatchedEmbeddingBagsCodegen([(7, 4)], use_cpu=True)
    kernel = _Kernel(module=fbgemm, tables=("a",))
    for ids in ([1, 2], [2, 3]):
        pooled = kernel.lookup(torch.tensor(ids), torch.tensor([0, 1, 2]))
        pooled.sum().backward()  # type: ignore[no-untyped-call]  # untyped in torch
    kernel.lookup(torch.tensor([5]), torch.tensor([0, 1]))  # not learned from
    ((table, rows, gradients),) = kernel.gradients()
    assert (table, rows.tolist(), gradients[:, 0].tolist()) == (0, [1, 2, 3], [1.0, 2.0, 1.0])
    assert list(kernel.gradients()) == []
