"""Feature programs: a job's feature graph, ready to run on batches."""

from rap_trainer.program.program import Program

__all__ = ["Program"]
