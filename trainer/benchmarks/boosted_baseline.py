"""Gradient-boosted trees and a constant on the planner's kernel samples, with the planner's own folds. Prints JSON lines.

    PYTHONPATH=operator uv run --no-project --with scikit-learn --with pydantic python trainer/benchmarks/boosted_baseline.py PROFILE.json

Reads the samples that `rap profile` keeps. Not a dependency of RAP: only the cost model's table of baselines needs it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rap_contract.profile import KernelSample, Profile
from rap_planner.fit import CRITERION, FOLDS, held_out, share_within


def features(sample: KernelSample) -> dict[str, float]:
    """The counts the cost model has, as columns."""
    tiles = sample.num_tiles
    row = {"bytes": sample.mean_tile.num_bytes * tiles, "tiles": tiles, "programs": float(sample.programs or 0)}
    row |= {f"op {name}": count * tiles for name, count in sample.mean_tile.ops.items()}
    return row | {f"launch {sample.launch}": 1.0}


def folds(samples: Sequence[KernelSample]) -> list[int]:
    """The fold of each sample, as `held_out` deals them: by place among the samples of its launch."""
    seen: dict[int, int] = {}
    found = []
    for sample in samples:
        place = seen.get(sample.launch, 0)
        seen[sample.launch] = place + 1
        found.append(place % FOLDS)
    return found


def boosted(samples: Sequence[KernelSample]) -> list[float]:
    """Seconds predicted for each sample by trees that have not seen its fold."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingRegressor  # type: ignore[import-not-found]  # not a dependency

    rows = [features(sample) for sample in samples]
    names = sorted({name for row in rows for name in row})
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    logs, fold = np.log([sample.seconds for sample in samples]), np.array(folds(samples))
    predicted = np.zeros(len(rows))
    for number in range(FOLDS):
        trees: Any = HistGradientBoostingRegressor(min_samples_leaf=3, max_iter=150)
        trees.fit(matrix[fold != number], logs[fold != number])
        predicted[fold == number] = trees.predict(matrix[fold == number])
    return [math.exp(value) for value in predicted]


def constant(samples: Sequence[KernelSample]) -> list[float]:
    """The median of the launch's samples in the other folds."""
    fold = folds(samples)
    return [
        median(
            other.seconds
            for other, theirs in zip(samples, fold, strict=True)
            if other.launch == sample.launch and theirs != mine
        )
        for sample, mine in zip(samples, fold, strict=True)
    ]


def main() -> None:
    """One line a way and profile."""
    for name in sys.argv[1:]:
        samples = Profile.from_json(Path(name).read_text()).samples
        common = {"profile": name, "samples": len(samples)}
        print(json.dumps({**common, "way": "cost model", "within_10": share_within(held_out(samples))}))
        for way, predict in (("boosted", boosted), ("constant", constant)):
            pairs = zip(predict(samples), samples, strict=True)
            within = sum(abs(seconds / sample.seconds - 1) <= CRITERION for seconds, sample in pairs)
            print(json.dumps({**common, "way": way, "within_10": within / len(samples)}))


if __name__ == "__main__":
    main()
