"""A mergeable sketch of predictions against labels: one float64 vector that ranks and windows add up.

Layout of a sketch of C = 3 + 2K cells: [sum of log likelihood, sum of p, rows with any logit,
K counts of label 0 by logit bin, K counts of label 1 by logit bin]; only finite logits enter sums and bins. Counts are whole numbers, exact in
float64 below 2**53 rows, so merging is exact for them and within rounding for the two sums.

Shapes: B rows of a batch, K logit bins, C cells. Not here: windows, ranks, decisions.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from rap_trainer.evaluation.scores import Scores

NUM_BINS = 8192
LOGIT_LIMIT = 16.0  # nats; sigmoid(-16) = 1.1e-7, below the rarest click rate worth modelling
BINS_PER_NAT = NUM_BINS / (2 * LOGIT_LIMIT)  # 256: two logits 1/256 apart are told apart
NUM_SUMS = 3
MINUS_ONE = torch.tensor(-1.0)
MIDDLE_BIN = torch.tensor(LOGIT_LIMIT * BINS_PER_NAT)
NUM_CELLS = NUM_SUMS + 2 * NUM_BINS


def empty(device: torch.device) -> torch.Tensor:
    """A sketch [C] of no rows."""
    return torch.zeros(NUM_CELLS, dtype=torch.float64, device=device)


@torch.no_grad()
def accumulate(cells_C: torch.Tensor, logits_B: torch.Tensor, labels_B: torch.Tensor) -> None:
    """Adds a batch to a sketch in place. Labels are 0 or 1. No host synchronisation, fixed addresses: capturable.

    Rows are computed in float32 (float64 for float64 logits), sums in float64.
    """
    logits_B = logits_B.detach()
    logits_B = logits_B if logits_B.dtype == torch.float64 else logits_B.float()
    labels_B = labels_B.to(logits_B.dtype)
    # x - x is 0 for a number, NaN for NaN and Inf; arithmetic is cheaper than masks on a CPU
    weights_B = (logits_B - logits_B).add_(1.0).nan_to_num_(0.0)
    logits_B = torch.nan_to_num(logits_B, 0.0, 0.0, 0.0)
    # log likelihood of label y is logsigmoid((2y - 1) x): exact in both tails, unlike log(sigmoid(x))
    likelihoods_B = F.logsigmoid(torch.add(MINUS_ONE, labels_B, alpha=2.0).mul_(logits_B))
    sums_2B = torch.stack((likelihoods_B, torch.sigmoid(logits_B))).mul_(weights_B)
    cells_C[:2] += sums_2B.sum(dim=1, dtype=torch.float64)
    cells_C[2] += logits_B.shape[0]
    bins_B = torch.add(MIDDLE_BIN, logits_B, alpha=BINS_PER_NAT).clamp_(0, NUM_BINS - 1).floor_()
    cells_B = bins_B.add_(labels_B, alpha=NUM_BINS).to(torch.int64)
    cells_C[NUM_SUMS:].scatter_add_(0, cells_B, weights_B.to(torch.float64))


def scores(cells_C: torch.Tensor) -> Scores:
    """Reads a sketch [C]; synchronises if it lives on a GPU.

    The AUC counts a pair of rows in one bin as a tie, so it is at most half the share of such pairs off:
    `auc_error`, about 5e-4 for logits with standard deviation 1.
    """
    cells_C = cells_C.to("cpu", torch.float64)
    likelihood, predicted, rows_seen = cells_C[:NUM_SUMS].tolist()
    negatives_K, positives_K = cells_C[NUM_SUMS:].view(2, NUM_BINS)
    negatives, positives = negatives_K.sum().item(), positives_K.sum().item()
    rows, pairs = negatives + positives, negatives * positives
    both = pairs > 0
    rate_2 = torch.tensor([negatives, positives], dtype=torch.float64) / max(rows, 1.0)
    entropy = -torch.special.xlogy(rate_2, rate_2).sum().item()
    below_K = negatives_K.cumsum(0) - negatives_K
    won = torch.dot(positives_K, below_K).item()
    tied = torch.dot(positives_K, negatives_K).item()
    return Scores(
        rows=int(rows),
        positives=int(positives),
        nonfinite_rows=int(rows_seen - rows),
        log_loss=-likelihood / rows if rows else None,
        normalized_entropy=-likelihood / rows / entropy if both else None,
        auc=(won + tied / 2) / pairs if both else None,
        auc_error=tied / 2 / pairs if both else None,
        calibration=predicted / positives if positives else None,
    )
