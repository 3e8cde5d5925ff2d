"""How good the model is while it trains: sketches, sliding window, divergence guard."""

from rap_trainer.evaluation.evaluator import AllReduce, Evaluator
from rap_trainer.evaluation.guard import Divergence, check
from rap_trainer.evaluation.scores import Evaluation, Scores

__all__ = ["AllReduce", "Divergence", "Evaluation", "Evaluator", "Scores", "check"]
