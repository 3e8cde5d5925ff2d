"""Training in this process, one rank: reproducible, resumable, ends for the right reason."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from rap_contract.pod import ENV_ATTEMPT, ExitCode
from rap_contract.problem import InvalidDocument
from rap_trainer.batch import Positions
from rap_trainer.display import Display, Progress
from rap_trainer.step.ledger import ENV_LEDGER, gaps, replay
from rap_trainer.step.loop import Ending
from rap_trainer.stream.discovery import FINISHED
from rap_trainer.stream.files import FileSource
from rap_trainer.stream.source import Lag, SourceError
from rap_trainer.train import train
from train.recorder import Recorder
from train.saved_state import assert_equal, newest, steps, tensors
from train.small_jobs import small_job, write_events

ROWS, BATCH = 330, 16
STEPS = 21  # 20 full ones and the last rows


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    write_events(folder, rows=ROWS)
    return folder / "events"


def run(folder: Path, events: Path, **changes: Any) -> tuple[Ending, Recorder]:
    recorder = Recorder()
    job = small_job(folder, source={"files": {"path": str(events)}}, **changes)
    return train(job, display=Display([recorder])), recorder


def test_equal_seeds_give_equal_models_and_other_seeds_others(tmp_path: Path, events: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        ending, recorder = run(folder, events, trainer__seed=seed)
        assert ending == Ending(code=ExitCode.DONE, reason="the source has ended")
        assert recorder.outcomes[0].steps == STEPS
        assert recorder.outcomes[0].rows == ROWS
    assert_equal(newest(folders[0]), newest(folders[1]))
    with pytest.raises(AssertionError):
        assert_equal(newest(folders[0]), newest(folders[2]))


def test_a_run_in_two_parts_equals_one_in_one_bit_for_bit_and_every_row_counts_once(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, events)
    monkeypatch.setenv(ENV_LEDGER, str(tmp_path / "ledger"))
    ending, _ = run(parts, events, trainer__maxSteps=7)
    assert ending.reason == "maxSteps is reached"
    _, recorder = run(parts, events)
    assert recorder.runs[0].resumed_step == 7
    assert recorder.runs[0].attempt == 2
    assert steps(parts) == [STEPS, 7]
    assert_equal(newest(whole), newest(parts))
    account = replay(tmp_path / "ledger")[0]
    assert sum(step.rows for step in account.values()) == ROWS
    assert gaps(account) == []


def test_a_finished_job_that_is_run_again_has_nothing_to_do(tmp_path: Path, events: Path) -> None:
    run(tmp_path, events)
    before = newest(tmp_path).stat()
    ending, recorder = run(tmp_path, events)
    assert ending.code == ExitCode.DONE
    assert recorder.outcomes[0].steps == 0
    assert newest(tmp_path).stat() == before


OPTIMIZERS = {
    "sgd": {"sgd": {"lr": 0.1}},
    "adagrad": {"adagrad": {"lr": 0.1}},
    "adam": {"adam": {"lr": 0.01, "weightDecay": 0.01}},
    "partialRowwiseAdam": {"partialRowwiseAdam": {"lr": 0.01}},
    "lamb": {"lamb": {"lr": 0.01}},
    "rowwiseAdagrad with decay": {"rowwiseAdagrad": {"lr": 0.1, "weightDecay": 0.01}},
}
DENSE = [{"sgd": {"lr": 0.1, "momentum": 0.9}}, {"adam": {"lr": 0.01}}, {"adamw": {"lr": 0.01}}]


@pytest.mark.parametrize(("name", "dense"), [(n, DENSE[i % len(DENSE)]) for i, n in enumerate(OPTIMIZERS)])
def test_every_optimizer_resumes_bit_for_bit(tmp_path: Path, events: Path, name: str, dense: dict[str, Any]) -> None:
    changes = {"optimizer": {"dense": dense, "embedding": OPTIMIZERS[name]}}
    run(tmp_path / "whole", events, **changes)
    run(tmp_path / "parts", events, trainer__maxSteps=5, **changes)
    run(tmp_path / "parts", events, **changes)
    assert_equal(newest(tmp_path / "whole"), newest(tmp_path / "parts"))


def test_weighted_lists_and_shared_half_precision_tables_train(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    weights = pa.array(list(random.random((64, 2)).astype("float32")), type=pa.list_(pa.float32()))
    write_events(tmp_path, rows=64, weight=weights)
    ids = [{"fillNull": {"value": 0}}, {"positiveModulus": {"modulus": 40}}]
    table = {"rows": 40, "dim": 8, "name": "shared", "dtype": "float16", "pooling": "mean"}
    job = small_job(
        tmp_path,
        columns={"label": "int32", "int_{0..2}": "float32", "cat_{0..2}": "list<int64>", "weight": "list<float32>"},
        features=[
            {"columns": ["int_{0..2}"], "ops": [{"fillNull": {"value": 0}}]},
            {"columns": ["cat_{0..1}"], "ops": ids, "table": table, "weights": "weight"},
            {"columns": ["cat_2"], "ops": ids, "table": {"rows": 40, "dim": 8}},
        ],
    )
    assert train(job).code == ExitCode.DONE
    saved = tensors(newest(tmp_path))
    prefix = "model.dlrm.sparse_arch.embedding_bag_collection.embedding_bags"
    assert {name for name in saved if name.startswith(prefix)} == {f"{prefix}.shared.weight", f"{prefix}.cat_2.weight"}
    assert str(saved[f"{prefix}.shared.weight"].dtype) == "torch.float16"


def test_a_model_of_the_users_own_trains(tmp_path: Path, events: Path) -> None:
    ending, _ = run(tmp_path, events, model={"factory": "train.own_model:build"})
    assert ending.code == ExitCode.DONE
    assert "model.head.weight" in tensors(newest(tmp_path))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_package.models:build", "cannot import 'no_such_package.models'"),
        ("train.own_model:no_such_function", "has no 'no_such_function'"),
        ("train.own_model:without_tables", "does not hold the tables"),
        ("train.own_model:no_module", "returned int"),
    ],
)
def test_a_factory_that_cannot_be_used_is_named(tmp_path: Path, events: Path, factory: str, message: str) -> None:
    with pytest.raises(InvalidDocument, match=message) as caught:
        run(tmp_path, events, model={"factory": factory})
    assert caught.value.problems[0].path == ("spec", "model", "factory")


def test_a_source_without_a_row_is_told_apart_from_a_finished_one(tmp_path: Path) -> None:
    write_events(tmp_path, rows=0, files=1)
    ending = train(small_job(tmp_path))
    assert ending.code == ExitCode.INVALID
    assert "before a single row came" in ending.reason
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_good_checkpoint(tmp_path: Path, events: Path) -> None:
    run(tmp_path, events, trainer__maxSteps=4)
    ending, _ = run(tmp_path, events, optimizer__dense={"sgd": {"lr": 1000}}, trainer__maxSteps=4)
    assert ending.code == ExitCode.CHECKPOINT  # another optimizer: its state is not in the checkpoint
    fresh = tmp_path / "fresh"
    good, _ = run(fresh, events, optimizer__dense={"sgd": {"lr": 0.1}}, trainer__maxSteps=4)
    assert good.code == ExitCode.DONE
    ending, recorder = run(fresh, events, optimizer__dense={"sgd": {"lr": 1000}})
    assert ending.code == ExitCode.DIVERGED
    assert "NaN or Inf" in ending.reason
    assert steps(fresh) == [4]
    assert recorder.outcomes[0].exit_code == ExitCode.DIVERGED


def test_a_normalized_entropy_above_the_limit_stops_the_run_and_keeps_the_good_checkpoint(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, events, trainer__maxSteps=4)
    monkeypatch.setattr("rap_trainer.step.loop.REPORT_EVERY_S", 0.0)
    limit = {"windowRows": 64, "maxNormalizedEntropy": 0.01}
    ending, recorder = run(tmp_path, events, evaluation=limit, checkpoint__intervalSeconds=0.001)
    assert ending.code == ExitCode.DIVERGED
    assert re.search(r"normalized entropy .* above .*0\.01", ending.reason), ending.reason
    assert steps(tmp_path) == [4]
    assert recorder.outcomes[0].exit_code == ExitCode.DIVERGED


def test_rollback_goes_back_once_and_skips_the_rows_since(tmp_path: Path) -> None:
    numbers = np.full(ROWS, 0.5, dtype="float32")
    numbers[170:180] = np.inf  # rows of steps 11 and 12
    write_events(tmp_path, rows=ROWS, int_0=pa.array(numbers))
    guard = {"evaluation": {"onDivergence": "rollback", "windowRows": 1000}}
    run(tmp_path, tmp_path / "events", trainer__maxSteps=8, **guard)
    ending, recorder = run(tmp_path, tmp_path / "events", **guard)
    assert ending == Ending(code=ExitCode.DONE, reason="the source has ended")
    assert len(recorder.texts("guard")) == 1
    assert "back to the checkpoint of step 8" in recorder.texts("guard")[0]
    assert all(value.isfinite().all() for value in tensors(newest(tmp_path)).values())


def test_a_second_divergence_after_a_rollback_stops_the_run(tmp_path: Path) -> None:
    numbers = np.full(ROWS, 0.5, dtype="float32")
    numbers[[170, 250]] = np.inf
    write_events(tmp_path, rows=ROWS, int_0=pa.array(numbers))
    guard = {"evaluation": {"onDivergence": "rollback", "windowRows": 1000}}
    run(tmp_path, tmp_path / "events", trainer__maxSteps=8, **guard)
    ending, recorder = run(tmp_path, tmp_path / "events", **guard)
    assert ending.code == ExitCode.DIVERGED
    assert len(recorder.texts("guard")) == 1
    assert steps(tmp_path) == [8]


class StopAfterThreeSteps(Recorder):
    """Asks this process to stop when a report shows three steps."""

    def update(self, progress: Progress) -> None:
        super().update(progress)
        if progress.step >= 3:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_is_answered_with_a_checkpoint(tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rap_trainer.step.loop.REPORT_EVERY_S", 0.0)
    recorder = StopAfterThreeSteps()
    job = small_job(tmp_path, source={"files": {"path": str(events)}})
    ending = train(job, display=Display([recorder]))
    assert ending == Ending(code=ExitCode.TERMINATED, reason="asked to stop")
    assert steps(tmp_path) == [recorder.outcomes[0].last.step]  # type: ignore[union-attr]  # a step was made
    assert 0 < steps(tmp_path)[0] < STEPS


def test_an_attempt_older_than_the_directorys_is_refused(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_ATTEMPT, "7")
    assert run(tmp_path, events, trainer__maxSteps=2)[0].code == ExitCode.DONE
    monkeypatch.setenv(ENV_ATTEMPT, "6")
    ending, _ = run(tmp_path, events)
    assert ending.code == ExitCode.CHECKPOINT
    assert "attempt 7 (7) has taken over" in ending.reason


def test_a_monitored_source_hears_of_every_complete_checkpoint(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Positions] = []

    class Monitored(FileSource):
        def saved(self, positions: Positions) -> None:
            heard.append(positions)

    monkeypatch.setattr("rap_trainer.train.FileSource", Monitored)
    run(tmp_path, events)
    assert [position.offset for position in heard[-1].values()] == [FINISHED, FINISHED]


def test_a_step_waits_for_nothing_to_be_kept_but_a_checkpoint_does(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []

    class Settling(FileSource):
        def settle(self) -> None:
            settled.append(1)
            super().settle()

    monkeypatch.setenv(ENV_LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setattr("rap_trainer.train.FileSource", Settling)
    run(tmp_path, events, trainer__maxSteps=3, checkpoint__intervalSeconds=3600)
    assert settled == [1], "for the checkpoint at the end"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")
def test_a_job_that_wants_gpus_where_there_are_none_is_refused(tmp_path: Path, events: Path) -> None:
    with pytest.raises(InvalidDocument, match="has no GPU: 0 found"):
        run(tmp_path, events, trainer__gpusPerNode=1)


def test_a_source_that_knows_its_lag_has_it_shown(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_its_end = run(tmp_path / "ended", events)[1].outcomes[0].last
    assert at_its_end is not None
    assert (at_its_end.lag_records, at_its_end.lag_s) == (0, 0.0)

    class Lagging(FileSource):
        def lag(self) -> Lag:
            return Lag(records=3, seconds=1.5)

    monkeypatch.setattr("rap_trainer.train.FileSource", Lagging)
    last = run(tmp_path / "with", events)[1].outcomes[0].last
    assert last is not None
    assert (last.lag_records, last.lag_s) == (3, 1.5)


def test_a_source_that_cannot_keep_what_it_must_at_a_checkpoint_ends_the_run_with_its_own_word(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: FileSource) -> None:
        raise SourceError("bad records cannot be kept: Connection refused; hint: mend it")

    monkeypatch.setattr(FileSource, "settle", refuse)
    ending, recorder = run(tmp_path, events, trainer__maxSteps=3)
    assert ending.code == ExitCode.INVALID  # and not PEER_LOST, whatever words the reason has
    assert ending.reason.startswith("bad records cannot be kept")
    assert recorder.outcomes[0].exit_code == ExitCode.INVALID
    assert steps(tmp_path) == []
