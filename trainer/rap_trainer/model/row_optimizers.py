"""Optimizers of embedding tables on devices where FBGEMM has no fused kernel for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RowOptimizer:
    """TODO."""

    def state(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...
