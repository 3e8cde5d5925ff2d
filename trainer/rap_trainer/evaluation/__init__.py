"""How good and how fresh the model is while it trains: sketches, window, divergence guard, freshness, workload."""

from rap_trainer.evaluation.anomalies import Anomalies
from rap_trainer.evaluation.evaluator import AllReduce, Evaluator
from rap_trainer.evaluation.freshness import Freshness, FreshnessReading
from rap_trainer.evaluation.guard import Divergence, check
from rap_trainer.evaluation.scores import Evaluation, Scores
from rap_trainer.evaluation.workload import GroupLoad, Workload, group_columns

__all__ = [
    "AllReduce",
    "Anomalies",
    "Divergence",
    "Evaluation",
    "Evaluator",
    "Freshness",
    "FreshnessReading",
    "GroupLoad",
    "Scores",
    "Workload",
    "check",
    "group_columns",
]
