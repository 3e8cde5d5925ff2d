"""Fused preprocessing: a job's feature chains as few Triton launches, equal to the eager program.

Deciding (lowering, grouping) is pure Python over values; only `FusedProgram` touches a device.
"""

from rap_trainer.fusion.layout import Block, OutputLayout
from rap_trainer.fusion.program import FusedProgram, Limits

__all__ = ["Block", "FusedProgram", "Limits", "OutputLayout"]
