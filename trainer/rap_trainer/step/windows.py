"""Tells in which window of the training step the model is, by hooks on TorchRec's modules. Changes no value.

A window begins when the host reaches it; on a GPU that is when its first work is enqueued. Windows are entered in the
order of the step, each at most once a step. Everything before the tables' lookup but the exchange of ids
counts to the window before it. Not here: what is done in a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rap_contract.windows import INPUT_DIST, PLACES
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

EMB_FWD, OUTPUT_DIST, MLP_FWD, MLP_BWD, GRAD_DIST, EMB_BWD = PLACES
WITH_EXCHANGE = (INPUT_DIST, *PLACES)
Listener = Callable[[str], None]


class StepWindows:
    """The windows of one model. Not thread-safe; a step's backward may call the listener from autograd's thread."""

    def __init__(self, module: nn.Module) -> None:
        self._listener: Listener | None = None
        self._entered = -1
        for child in module.modules():
            if isinstance(child, ShardedEmbeddingBagCollection):
                child.register_forward_pre_hook(self._exchange)
                child.register_forward_hook(self._looked_up)
                for lookup in child._lookups:
                    lookup.register_forward_pre_hook(self._lookup)
                    lookup.register_forward_hook(self._exchange_outputs)

    def begin(self, listener: Listener) -> None:
        """A step begins: `listener` hears each window's name as it is entered."""
        self._listener, self._entered = listener, -1

    def end(self) -> None:
        """The step is over."""
        self._listener = None

    def enter(self, window: str) -> None:
        """The step has come to a window, past those before it; later ones are never followed by earlier ones."""
        place = WITH_EXCHANGE.index(window)
        while self._listener is not None and place > self._entered:
            self._entered += 1
            self._listener(WITH_EXCHANGE[self._entered])

    def _exchange(self, module: nn.Module, inputs: Any) -> None:
        del module, inputs
        self.enter(INPUT_DIST)

    def _lookup(self, module: nn.Module, inputs: Any) -> None:
        del module, inputs
        self.enter(EMB_FWD)

    def _exchange_outputs(self, module: nn.Module, inputs: Any, pooled: torch.Tensor) -> None:
        del module, inputs
        self.enter(OUTPUT_DIST)
        if self._listener is not None and pooled.requires_grad:
            _when_reached(pooled, lambda: self.enter(EMB_BWD))

    def _looked_up(self, module: nn.Module, inputs: Any, awaitable: Any) -> None:
        del module, inputs
        if self._listener is not None:
            awaitable.callbacks.append(self._arrived)

    def _arrived(self, pooled: Any) -> Any:
        """Called with the embeddings once they are here."""
        self.enter(MLP_FWD)
        values = pooled.values()
        if values.requires_grad:
            _when_reached(values, lambda: self.enter(GRAD_DIST))
        return pooled


def _when_reached(tensor: torch.Tensor, then: Callable[[], None]) -> None:
    """Calls `then` when the backward pass has this tensor's gradient."""
    tensor.register_hook(lambda _: then())  # type: ignore[no-untyped-call]  # torch leaves it untyped
