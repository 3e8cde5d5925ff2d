"""The profile that plans of this attempt are made from: read once, corrected by what training measured, measured again on drift.

Not here: when to measure again (`remeasuring.py`), and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from rap_contract import metrics
from rap_contract.job import RAPJob
from rap_contract.pod import ENV_PROFILE_FILE
from rap_contract.problem import InvalidDocument
from rap_contract.profile import Profile
from rap_contract.windows import PLACES
from rap_planner.correct import corrected
from rap_planner.cost import Costs

from rap_trainer.display.metric_store import MetricStore
from rap_trainer.plan.comparison import PREPROCESSING, STEP, TRAINING
from rap_trainer.plan_inputs import read_profile

PROFILE_NAME = "profile.json"
"""Beside the checkpoints: where every attempt of the job finds it."""


class ProfileInForce:
    """Asked from the training loop and from the server's threads."""

    def __init__(self, job: RAPJob, environment: Mapping[str, str], store: MetricStore) -> None:
        self._job, self._store = job, store
        named = environment.get(ENV_PROFILE_FILE)
        self._beside = Path(job.spec.checkpoint.path) / PROFILE_NAME
        self._path = Path(named) if named else self._beside
        self._is_named = bool(named)
        self._lock = Lock()
        self._measured: Profile | None = None
        self._known: dict[str, float] = {}
        """Measured over predicted when it was measured: what the profile has in it already."""

    def read(self) -> Profile:
        """As it was measured last; an H200's where there is none. Raises InvalidDocument."""
        with self._lock:
            if self._measured is not None:
                return self._measured
        return read_profile(self._path if self._is_named or self._path.is_file() else None, self._job)

    def corrected(self) -> tuple[Profile, bool]:
        """The profile as the steps of this attempt say it should be, and whether they say anything. Raises InvalidDocument."""
        ratios = self._ratios()
        with self._lock:
            since = {part: ratio / self._known.get(part, 1.0) for part, ratio in ratios.items()}
        step = since.get(STEP, 1.0)
        training, preprocessing = since.get(TRAINING, step), since.get(PREPROCESSING, step)
        return corrected(self.read(), training=training, preprocessing=preprocessing), bool(ratios)

    def _ratios(self) -> dict[str, float]:
        """Measured over predicted, by part."""
        return {labels[0]: value for labels, value in self._store.read(metrics.PLAN_ERROR_RATIO).items()}

    def replace(self, profile: Profile) -> None:
        """A new measurement: kept for this attempt, and beside the checkpoints for the next ones."""
        with self._lock:
            self._measured, self._known = profile, self._ratios()
        aside = self._beside.with_suffix(".tmp")
        aside.write_text(profile.to_json())
        aside.replace(self._beside)
        self.show()

    def show(self) -> None:
        """What each window has left over, as metrics; nothing where the profile is of another machine or model."""
        try:
            profile = self.read()
        except InvalidDocument:
            return
        if profile.model_hash is None:
            return
        costs = Costs(profile)
        for window in PLACES:
            self._store.set(metrics.WINDOW_CAPACITY_SECONDS, costs.capacity_seconds(window), window=window)
