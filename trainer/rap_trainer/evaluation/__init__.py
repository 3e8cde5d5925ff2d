"""How good and how fresh the model is while it trains: sketches, sliding window, divergence guard, freshness."""

from rap_trainer.evaluation.evaluator import AllReduce, Evaluator
from rap_trainer.evaluation.freshness import Freshness, FreshnessReading
from rap_trainer.evaluation.guard import Divergence, check
from rap_trainer.evaluation.scores import Evaluation, Scores

__all__ = [
    "AllReduce",
    "Divergence",
    "Evaluation",
    "Evaluator",
    "Freshness",
    "FreshnessReading",
    "Scores",
    "check",
]
