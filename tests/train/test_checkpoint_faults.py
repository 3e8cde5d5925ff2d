"""Checkpoints that are damaged, foreign, of a changed job, or that the disk refuses: told apart, nothing lost."""

from __future__ import annotations

import json
import pickle
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rap_contract.job import RAPJob
from rap_contract.pod import ExitCode
from rap_trainer.checkpoint import fence, reader, writer
from rap_trainer.checkpoint.commit import commit
from rap_trainer.checkpoint.errors import Damaged, Fenced, Poisoned
from rap_trainer.checkpoint.fence import Claim
from rap_trainer.checkpoint.layout import read_manifest, step_directory
from rap_trainer.display import Display
from rap_trainer.step.loop import Ending
from rap_trainer.train import train
from train.recorder import Recorder
from train.saved_state import newest, steps
from train.small_jobs import small_job, write_events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with checkpoints of steps 3 and 6, and rows for 12 steps."""
    folder = tmp_path_factory.mktemp("trained")
    write_events(folder, rows=192)
    for max_steps in (3, 6):
        assert train(small_job(folder, trainer__maxSteps=max_steps)).code == ExitCode.DONE
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    shutil.copytree(trained, tmp_path / "job")
    return tmp_path / "job"


def run(job: RAPJob) -> tuple[Ending, Recorder]:
    recorder = Recorder()
    return train(job, display=Display([recorder])), recorder


def cut_in_half(directory: Path) -> None:
    path = next(directory.glob("*.distcp"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(directory: Path) -> None:
    path = next(directory.glob("*.distcp"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose_the_index(directory: Path) -> None:
    (directory / ".metadata").unlink()


def lose_a_rank(directory: Path) -> None:
    (directory / "rank-00000.json").unlink()


def lose_the_commit(directory: Path) -> None:
    (directory / "COMMIT").unlink()


def cut_the_commit(directory: Path) -> None:
    text = (directory / "COMMIT").read_text()
    (directory / "COMMIT").write_text(text[: len(text) // 2])


def change_the_commit(directory: Path) -> None:
    text = (directory / "COMMIT").read_text()
    (directory / "COMMIT").write_text(text.replace('"step": 6', '"step": 7'))


DAMAGES = [cut_in_half, flip_a_bit, lose_the_index, lose_a_rank, lose_the_commit, cut_the_commit, change_the_commit]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(step_directory(folder / "checkpoints", 6))
    ending, recorder = run(small_job(folder, trainer__maxSteps=7))
    assert ending.code == ExitCode.DONE
    assert recorder.runs[0].resumed_step == 3
    assert "step-0000000006" in recorder.texts("warning")[0]
    assert steps(folder)[0] == 7


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_made_again(folder: Path) -> None:
    flip_a_bit(step_directory(folder / "checkpoints", 6))
    assert run(small_job(folder, trainer__maxSteps=6))[0].code == ExitCode.DONE
    _, recorder = run(small_job(folder, trainer__maxSteps=7))
    assert recorder.runs[0].resumed_step == 6
    assert recorder.texts("warning") == []


def test_when_all_checkpoints_are_damaged_the_run_ends_and_none_is_touched(folder: Path) -> None:
    for step in (3, 6):
        flip_a_bit(step_directory(folder / "checkpoints", step))
    ending, _ = run(small_job(folder))
    assert ending.code == ExitCode.CHECKPOINT
    assert "all 2 checkpoints" in ending.reason
    assert "checksum" in ending.reason
    assert steps(folder) == [6, 3]


def test_a_checkpoint_of_another_job_is_refused(folder: Path) -> None:
    job = small_job(folder)
    owner = (folder / "checkpoints" / "FENCE").read_bytes()
    other = job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": "other"})})
    ending, _ = run(other)
    assert ending.code == ExitCode.CHECKPOINT
    assert "was written by job 'small'" in ending.reason
    assert "spec.checkpoint.path" in ending.reason
    assert (folder / "checkpoints" / "FENCE").read_bytes() == owner
    assert steps(folder) == [6, 3]


def test_a_new_nonce_starts_from_a_fresh_model(folder: Path) -> None:
    ending, recorder = run(small_job(folder, restartNonce=1, trainer__maxSteps=2))
    assert ending.code == ExitCode.DONE
    assert recorder.runs[0].resumed_step == 0
    _, recorder = run(small_job(folder, restartNonce=1, trainer__maxSteps=3))
    assert recorder.runs[0].resumed_step == 2


def with_features(index: int, **changes: Any) -> list[dict[str, Any]]:
    features: list[dict[str, Any]] = [
        {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0}}]},
        {"columns": ["cat_{0..2}"], "ops": [{"positiveModulus": {"modulus": 40}}], "table": {"rows": 40, "dim": 8}},
    ]
    features[index] = {**features[index], **changes}
    return features


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "table rows": (
        {"features": with_features(1, table={"rows": 50, "dim": 8})},
        r"embedding_bags\.cat_0\.weight has shape \[50, 8\] in the job, \[40, 8\] in the checkpoint",
    ),
    "table name": (
        {"features": with_features(1, columns=["cat_0", "cat_1"])},
        "has shape",
    ),
    "layer": ({"model__dlrm__top": [20, 1]}, r"over_arch.* has shape"),
    "optimizer": (
        {"optimizer__embedding": {"adagrad": {"lr": 0.1}}},
        r"cat_0\.momentum1 has shape \[40, 8\] in the job, \[40\] in the checkpoint",
    ),
    "dense optimizer": ({"optimizer__dense": {"adam": {"lr": 0.1}}}, "exp_avg is not in the checkpoint"),
    "stateless optimizer": ({"optimizer__dense": {"sgd": {"lr": 0.1}}}, "of the checkpoint is in no part"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_job_names_the_tensor_and_why_it_cannot_load(folder: Path, change: str) -> None:
    changes, message = CHANGES[change]
    if "optimizer" in change:
        part = next(iter(changes)).removeprefix("optimizer__")
        other = {"dense": {"adagrad": {"lr": 0.02}}, "embedding": {"rowwiseAdagrad": {"lr": 0.1}}}
        changes = {"optimizer": {**other, part: next(iter(changes.values()))}}
    ending, _ = run(small_job(folder, **changes))
    assert ending.code == ExitCode.CHECKPOINT
    assert re.search(message, ending.reason), ending.reason
    assert "spec.restartNonce" in ending.reason
    assert steps(folder) == [6, 3]


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Limits the size of every file this process writes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_at_the_end_fails_the_run_and_keeps_the_old_checkpoint(
    folder: Path, small_files: Callable[[int], None]
) -> None:
    before = newest(folder).stat()
    small_files(100_000)
    ending, _ = run(small_job(folder))
    assert ending.code == ExitCode.CHECKPOINT
    assert "cannot write a checkpoint" in ending.reason
    assert newest(folder).stat() == before
    assert not list((folder / "checkpoints").glob(".writing-*"))


def test_a_disk_that_is_full_for_a_while_costs_only_that_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.CheckpointWriter, "_prepare", _refusing_once(writer.CheckpointWriter._prepare))
    ending, recorder = run(small_job(folder, checkpoint__intervalSeconds=0.001))
    assert ending.code == ExitCode.DONE
    assert len(recorder.texts("warning")) == 1
    assert "training goes on" in recorder.texts("warning")[0]
    assert steps(folder)[0] == 12


def _refusing_once(prepare: Callable[..., None]) -> Callable[..., None]:
    refusals = iter([OSError(28, "No space left on device")])

    def wrapped(*arguments: Any) -> None:
        for refusal in refusals:
            raise refusal
        prepare(*arguments)

    return wrapped


def test_a_state_with_nan_is_not_written() -> None:
    with pytest.raises(Poisoned, match=r"model\.layer"):
        writer.refuse_nonfinite(
            {"model.ids": torch.ones(3, dtype=torch.int64), "model.layer": torch.tensor([1, float("nan")])}
        )


def test_an_index_that_would_run_code_is_not_unpickled(folder: Path) -> None:
    directory = newest(folder)
    (directory / ".metadata").write_bytes(pickle.dumps(print))
    with pytest.raises(Damaged, match="has no place in a checkpoint's index"):
        reader._Reader(directory).read_metadata()


def test_only_as_many_as_asked_for_are_kept(folder: Path) -> None:
    run(small_job(folder, checkpoint__intervalSeconds=0.001, checkpoint__keep=2))
    assert len(steps(folder)) == 2
    assert steps(folder)[0] == 12


def test_the_manifest_names_job_step_and_every_file(folder: Path) -> None:
    document = json.loads((newest(folder) / "COMMIT").read_text().rpartition("}")[0] + "}")
    assert document["job"] == {"name": "small", "source": "files", "nonce": 0}
    assert (document["step"], document["rows"]) == (6, 96)
    assert document["files"].keys() == {path.name for path in newest(folder).iterdir()} - {"COMMIT"}


def test_a_late_write_of_an_older_attempt_is_refused_at_its_commit(folder: Path) -> None:
    root = folder / "checkpoints"
    old, new = Claim(token=10**14, attempt=8), Claim(token=10**14 + 1, attempt=9)
    fence.take(root, old)
    manifest = read_manifest(newest(folder))
    aside = root / ".writing-late"
    aside.mkdir()
    fence.take(root, new)
    with pytest.raises(Fenced, match="attempt 9"):
        commit(root, aside, replace(manifest, step=7), claim=old, keep=3)
    assert steps(folder) == [6, 3]
    with pytest.raises(Fenced):
        fence.take(root, old)
    commit(root, aside, replace(manifest, step=7), claim=new, keep=3)
    assert steps(folder)[0] == 7


def test_claims_grow_whoever_makes_them() -> None:
    by_operator = Claim.given({"RAP_FENCE": "1700000000000", "RAP_ATTEMPT": "3"})
    assert by_operator is not None
    by_hand = by_operator.next(now_s=1_600_000_000.0)
    assert (by_hand.token, by_hand.attempt) == (1_700_000_000_001, 4)
    assert by_hand.next(now_s=1_800_000_000.0).token == 1_800_000_000_000
    assert Claim.given({}) is None
