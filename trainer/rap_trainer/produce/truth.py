"""The planted truth: which events are clicked. A function of the visible columns that a DLRM can learn.

Every weight is a hash of its name, so there are no tables, and any id of any column has one. The
truth drifts by turning from one draw of all weights to the next, its strength unchanged.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from rap_trainer.produce.options import NUM_CATS, NUM_INTS

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct ids of Criteo Kaggle's 26 columns (SEMANTICS.md)."""
BIAS = -1.4
"""Logit of the average event: about a quarter is clicked, as in Criteo Kaggle."""
CAT_STD, INT_STD, PAIR_STD = 1.3, 0.7, 0.5
"""Standard deviations of the parts of the logit: together an ideal normalized entropy of about 0.75."""
PAIRS = ((1, 5), (4, 8), (13, 19), (16, 22))
"""Columns whose ids act together: what the interaction of a DLRM is for."""
_SPREAD = math.sqrt(3.0)  # standard deviation 1 for a uniform draw of -1..1


def uniform(x: npt.NDArray[np.uint64], salt: int) -> Floats:
    """Draws of -1..1 that depend on `x` and `salt` only (splitmix64)."""
    with np.errstate(over="ignore"):
        z = x + np.uint64((salt * 0x9E3779B97F4A7C15) & (2**64 - 1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * (2.0 / 2**53) - 1.0


class Truth:
    """The click probability of events, for one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        strengths = 1 / np.log(2.0 + np.array(CARDINALITIES))  # ids of small columns are seen often: learned soon
        self._strengths = CAT_STD * strengths / np.linalg.norm(strengths)

    def int_part(self, scaled: Floats, nulls: npt.NDArray[np.bool_], turn: float) -> Floats:
        """Logit of the numbers; `scaled` [rows, 13] is about standard normal, 0 where null."""
        columns = np.arange(NUM_INTS, dtype=np.uint64)
        slopes = self._weights(columns, 1, turn)
        when_null = self._weights(columns, 2, turn)
        part: Floats = INT_STD / np.sqrt(NUM_INTS) * (scaled @ slopes + nulls @ when_null)
        return part

    def cat_part(self, column: int, ids: Int64s, turn: float) -> Floats:
        """Logit of single ids of a column."""
        return float(self._strengths[column]) * self._weights(ids.astype(np.uint64), 100 + column, turn)

    def pair_part(self, column: int, ids: Int64s, turn: float) -> Floats:
        """One side of a pair's product, scaled so that all pairs together have PAIR_STD."""
        return math.sqrt(PAIR_STD / math.sqrt(len(PAIRS))) * self._weights(ids.astype(np.uint64), 200 + column, turn)

    def _weights(self, names: npt.NDArray[np.uint64], family: int, turn: float) -> Floats:
        draw = int(turn)
        angle = (turn - draw) * math.pi / 2
        salt = self._seed * 1_000_003 + family * 10_007 + draw
        weights = math.cos(angle) * uniform(names, salt)
        if angle:
            weights += math.sin(angle) * uniform(names, salt + 1)
        return _SPREAD * weights


assert len(CARDINALITIES) == NUM_CATS
