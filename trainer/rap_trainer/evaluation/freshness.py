"""Freshness: event time to optimizer step, as a histogram that ranks add up.

Bins are the contract's Prometheus buckets, which double, each cut into SUBDIVISIONS equal factors so that quantiles
are sharp. Shapes: B rows, E bins. Not here: the clock; the caller says what time it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from rap_contract.metrics import FRESHNESS_S

from rap_trainer.evaluation.evaluator import AllReduce, alone

SUBDIVISIONS = 16  # of an octave: a quantile is at most 2**(1/16) - 1 = 4.4 % too high
LOW_OCTAVE = math.log2(FRESHNESS_S[0])
NUM_BINS = 1 + SUBDIVISIONS * (len(FRESHNESS_S) - 1) + 1  # up to the first bucket, between, beyond the last


@dataclass(frozen=True, kw_only=True)
class FreshnessReading:
    """Rows since the reading before. Quantiles are of all ranks and at most one bin too high; None without rows."""

    p50_s: float | None
    p99_s: float | None
    bucket_counts: tuple[int, ...]
    """Rows of this rank by bucket of `metrics.FRESHNESS_S`, the last beyond all: not cumulative."""
    sum_s: float
    """Sum over the rows of this rank."""


class Freshness:
    """The histogram of one rank since the last reading. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._cells = torch.zeros(NUM_BINS + 1, dtype=torch.float64, device=device)  # bins, then the sum of ages

    @torch.no_grad()
    def update(self, event_times_s_B: torch.Tensor, now_s: float) -> None:
        """Adds a batch whose step ended at `now_s`. NaN times do not count; times in the future count as 0 seconds."""
        ages_B = torch.sub(now_s, event_times_s_B).clamp_(min=0.0).float()
        known_B = (ages_B - ages_B).add_(1.0).nan_to_num_(0.0).to(torch.float64)
        ages_B = ages_B.nan_to_num_(0.0, 0.0, 0.0)
        # bin i holds (edge i-1, edge i]: float32 logarithms are exact at the buckets' edges, which are powers of two
        bins_B = ages_B.log2().sub_(LOW_OCTAVE).mul_(SUBDIVISIONS).ceil_().clamp_(0, NUM_BINS - 1).to(torch.int64)
        self._cells[:-1].scatter_add_(0, bins_B, known_B)
        self._cells[-1] += ages_B.sum(dtype=torch.float64)

    def take(self, all_reduce: AllReduce = alone) -> FreshnessReading:
        """What came since the last call, and begins anew. Collective: every rank calls it after the same step."""
        own = self._cells.clone()
        all_reduce(self._cells)
        counts = self._cells[:-1].to("cpu", copy=True)
        self._cells.zero_()
        *own_counts, sum_s = own.tolist()
        between = [own_counts[i : i + SUBDIVISIONS] for i in range(1, NUM_BINS - 1, SUBDIVISIONS)]
        by_bucket = (own_counts[0], *(sum(bins) for bins in between), own_counts[-1])
        return FreshnessReading(
            p50_s=quantile(counts, 0.5),
            p99_s=quantile(counts, 0.99),
            bucket_counts=tuple(int(count) for count in by_bucket),
            sum_s=sum_s,
        )


def quantile(counts_E: torch.Tensor, share: float) -> float | None:
    """Upper edge in seconds of the bin that holds the quantile; beyond the last edge, that edge. None without rows."""
    rows = counts_E.sum().item()
    if not rows:
        return None
    index = int(torch.searchsorted(counts_E.cumsum(0), math.ceil(share * rows)).item())
    return float(2.0 ** (LOW_OCTAVE + min(index, NUM_BINS - 2) / SUBDIVISIONS))
