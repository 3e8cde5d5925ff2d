"""Preprocessing ops as declared values: one op, one file, its parameters and its typing rule.

A file here registers itself by being here; its eager twin is the file of the same stem in
`rap_trainer.ops`, its fused path the one in `rap_trainer.fusion`.
"""

from rap_contract.ops.base import Op, OpError
from rap_contract.ops.registry import OPS, OpSpec

__all__ = ["OPS", "Op", "OpError", "OpSpec"]
