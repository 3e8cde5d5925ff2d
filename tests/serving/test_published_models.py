"""Models published beside training: whole, current, bounded, equal to the checkpoint, and able to score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from rap_contract import metrics
from rap_contract.metrics import TRAINER
from rap_contract.pod import ExitCode
from rap_trainer.checkpoint.layout import read_manifest
from rap_trainer.cli import main as rap
from rap_trainer.display import Display
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.serving import publisher
from rap_trainer.serving.publisher import publish
from rap_trainer.serving.scorer import Scorer
from rap_trainer.serving.version import CURRENT, MODEL, NoModel, Version, find_version, versions
from rap_trainer.train import train
from train.recorder import Recorder
from train.saved_state import newest, tensors
from train.small_jobs import small_job, write_events

ROWS = 330


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `events`, `checkpoints` and `models` after a run that published."""
    folder = tmp_path_factory.mktemp("published")
    write_events(folder, rows=ROWS)
    run(folder)
    return folder


def run(folder: Path, **changes: Any) -> tuple[Recorder, MetricStore]:
    recorder, store = Recorder(), MetricStore(TRAINER)
    job = small_job(folder, publish={"path": str(folder / "models"), "intervalSeconds": 0.001, "keep": 2}, **changes)
    assert train(job, display=Display([recorder]), store=store).code == ExitCode.DONE
    return recorder, store


def value(store: MetricStore, metric: metrics.Metric) -> float:
    name = metric.name.removesuffix("_total")
    return next(family.samples[0].value for family in store.collect() if family.name in (name, metric.name))


def test_a_run_publishes_and_keeps_the_newest_versions(tmp_path: Path) -> None:
    write_events(tmp_path, rows=ROWS)
    recorder, store = run(tmp_path, trainer__maxSteps=5)
    assert value(store, metrics.PUBLISHED) >= 1
    assert recorder.texts("publish")[-1] == "published the model of step 5"
    for steps in (9, 14, 21):
        run(tmp_path, trainer__maxSteps=steps)
    kept = versions(tmp_path / "models")
    assert [path.name for path in kept] == ["version-0000000021", "version-0000000014"]
    assert (tmp_path / "models" / CURRENT).read_text() == "version-0000000021\n"
    assert Version.read(kept[0]).rows == ROWS
    assert not list((tmp_path / "models").glob(".*"))


def test_a_version_is_links_to_the_checkpoint_and_holds_no_positions(trained: Path) -> None:
    version, checkpoint = find_version(trained / "models"), newest(trained)
    names = {path.name for path in version.iterdir()}
    assert not {name for name in names if name.startswith("rank-")}
    shared = [name for name in names if name.endswith(".distcp")]
    assert shared
    assert all((version / name).samefile(checkpoint / name) for name in shared)


def test_the_scorer_is_the_trained_model(trained: Path) -> None:
    scorer, saved = Scorer.load(trained / "models"), tensors(newest(trained))
    state = scorer._model.state_dict()
    assert {f"model.{name}" for name in state} == {name for name in saved if name.startswith("model.")}
    for name, tensor in state.items():
        assert torch.equal(tensor, saved[f"model.{name}"]), name


def test_rap_score_writes_probabilities_that_separate_the_labels(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = trained / "events" / "part-000.parquet"
    assert rap(["score", str(trained / "models"), str(source), str(tmp_path / "scores.parquet")]) == ExitCode.DONE
    assert "165 rows in" in capsys.readouterr().out
    scores = pq.read_table(tmp_path / "scores.parquet").to_pydict()
    assert len(scores["probability"]) == pq.read_metadata(source).num_rows
    by_label = {
        label: [p for p, found in zip(scores["probability"], scores["label"], strict=True) if found == label]
        for label in (0.0, 1.0)
    }
    assert all(0.0 < probability < 1.0 for probability in scores["probability"])
    assert sum(by_label[1.0]) / len(by_label[1.0]) > sum(by_label[0.0]) / len(by_label[0.0]) + 0.01


def test_events_without_labels_are_scored_alike(trained: Path, tmp_path: Path) -> None:
    source = trained / "events" / "part-000.parquet"
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(source).drop_columns(["label"]), bare)
    for name, path in (("with", source), ("without", bare)):
        assert rap(["score", str(trained / "models"), str(path), str(tmp_path / f"{name}.parquet")]) == ExitCode.DONE
    with_label, without = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("with", "without"))
    assert without.column_names == ["probability"]
    assert without["probability"].equals(with_label["probability"])


def test_where_links_are_impossible_files_are_copied(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    step = read_manifest(newest(trained)).step
    publish(small_job(trained), trained / "checkpoints", tmp_path / "models", step=step, keep=1)
    copied = find_version(tmp_path / "models")
    for name, digest in Version.read(copied).files.items():
        assert (copied / name).stat().st_size == digest.size_bytes
    assert Scorer.load(tmp_path / "models").version.step == step


def test_a_full_disk_stops_neither_training_nor_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path, rows=ROWS)
    run(tmp_path, trainer__maxSteps=5)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(publisher, "_link", refuse)
    recorder, store = run(tmp_path)
    assert value(store, metrics.PUBLISH_FAILURES) >= 1
    assert "No space left on device" in recorder.texts("publish")[-1]
    assert Scorer.load(tmp_path / "models").version.step == 5
    assert not list((tmp_path / "models").glob(".*"))


def test_damage_and_absence_are_named(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = read_manifest(newest(trained)).step
    publish(small_job(trained), trained / "checkpoints", tmp_path, step=step, keep=1)
    version = find_version(tmp_path)
    victim = next(path for path in version.iterdir() if path.name.endswith(".distcp"))
    content = victim.read_bytes()
    victim.unlink()  # a link: the checkpoint's own file stays as it is
    victim.write_bytes(content[:-1])
    with pytest.raises(NoModel, match=rf"{victim.name} has \d+ bytes instead of"):
        Scorer.load(tmp_path)
    (version / MODEL).write_text("{")
    assert rap(["score", str(tmp_path), "in.parquet", str(tmp_path / "out.parquet")]) == ExitCode.INVALID
    assert f"{version / MODEL} cannot be read" in capsys.readouterr().err
    assert rap(["score", str(tmp_path / "none"), "in.parquet", str(tmp_path / "out.parquet")]) == ExitCode.INVALID
    assert "hint: give a version's directory" in capsys.readouterr().err
