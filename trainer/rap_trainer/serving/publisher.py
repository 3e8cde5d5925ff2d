"""Publishes models beside training: the newest complete checkpoint, linked or copied, every so often.

A checkpoint's files never change once it is complete, so a version on the same file system is hard links: no memory,
no second copy on disk, and training does not wait. Elsewhere they are copied. Rank 0 alone does it, in a thread.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.training import Publish
from rap_contract.yaml_text import yaml_text

from rap_trainer.checkpoint.errors import Damaged
from rap_trainer.checkpoint.layout import FileDigest, Manifest, read_manifest, step_directory
from rap_trainer.checkpoint.rank_state import RANK_FILE
from rap_trainer.display.metric_store import MetricStore
from rap_trainer.serving.version import CURRENT, JOB, MODEL, PUBLISHING, Version, version_directory, versions

log = logging.getLogger(__name__)


class Publisher:
    """Versions of one job's model. Failures do not stop training.

    `tell` is told of each version and failure, by the thread that offers, when it next does.
    """

    def __init__(
        self,
        job: RAPJob,
        publish: Publish,
        store: MetricStore,
        *,
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._publish, self._store, self._tell, self._clock = job, publish, store, tell, clock
        self._checkpoints, self._root = Path(job.spec.checkpoint.path), Path(publish.path)
        self._due_s = clock() + publish.interval_seconds
        self._offered: int | None = None
        """Step of the newest checkpoint that is not published."""
        self._thread: threading.Thread | None = None
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def offer(self, step: int) -> None:
        """A checkpoint is complete; it is published if the interval is over and none is being published. Never blocks."""
        self._offered = step
        self._repeat()
        if self._clock() >= self._due_s and (self._thread is None or not self._thread.is_alive()):
            self._start()

    def close(self) -> None:
        """Publishes the newest checkpoint if it is not yet, and waits for it."""
        if self._thread is not None:
            self._thread.join()
        if self._offered is not None:
            self._start()
            assert self._thread is not None
            self._thread.join()
        self._repeat()

    def _repeat(self) -> None:
        while not self._said.empty():
            self._tell(self._said.get())

    def _start(self) -> None:
        step, self._offered = self._offered, None
        self._due_s = self._clock() + self._publish.interval_seconds
        assert step is not None
        self._thread = threading.Thread(target=self._run, args=(step,), name="publisher", daemon=True)
        self._thread.start()

    def _run(self, step: int) -> None:
        try:
            version = publish(self._job, self._checkpoints, self._root, step=step, keep=self._publish.keep)
        except (OSError, Damaged) as error:
            self._store.inc(metrics.PUBLISH_FAILURES)
            reason = f"{error.filename or self._root}: {error.strerror}" if isinstance(error, OSError) else str(error)
            log.warning("the model of step %d is not published: %s; see spec.publish.path", step, reason)
            self._said.put(f"the model of step {step} is not published: {reason}")
            return
        self._store.inc(metrics.PUBLISHED)
        self._store.set(metrics.PUBLISHED_TIME_SECONDS, version.time_s)
        self._said.put(f"published the model of step {step}")


def publish(job: RAPJob, checkpoints: Path, root: Path, *, step: int, keep: int) -> Version:
    """Makes the checkpoint of `step` a version and the current one. Raises OSError, Damaged."""
    source = step_directory(checkpoints, step)
    manifest = read_manifest(source)
    aside, target = root / f"{PUBLISHING}{step:010d}", version_directory(root, step)
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{PUBLISHING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir()
    try:
        version = _fill(aside, source, manifest, job)
        if target.exists():  # of an attempt before, whose rows were trained again
            shutil.rmtree(target)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _replace(root / CURRENT, f"{target.name}\n")
    for old in versions(root)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return version


def _fill(aside: Path, source: Path, manifest: Manifest, job: RAPJob) -> Version:
    """The model's files and what describes them; what describes the stream stays behind."""
    names = [name for name in manifest.files if not RANK_FILE.match(name)]
    for name in names:
        _link(source / name, aside / name)
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    _write(aside / JOB, yaml_text(document))
    files = {name: manifest.files[name] for name in names} | {JOB: FileDigest.of(aside / JOB)}
    version = Version(
        job=job.metadata.name, step=manifest.step, rows=manifest.rows, time_s=manifest.time_s, files=files
    )
    _write(aside / MODEL, version.to_json())
    return version


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    _write(aside, text)
    aside.replace(path)
