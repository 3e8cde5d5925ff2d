"""PyTorch tells a lost peer by RuntimeError alone: gloo's and NCCL's words decide whether the group starts again."""

from __future__ import annotations

import pytest
from rap_trainer.world import is_peer_loss

GLOO = (  # all that its TCP pairs raise (PyTorch 2.11)
    "Application timeout caused pair closure",
    "Connect timeout [127.0.0.1]:9",
    "Connection closed by peer [127.0.0.1]:9",
    "Read timeout [127.0.0.1]:9",
    "Socket closed [127.0.0.1]:9",
    "Timed out waiting 2000ms for recv operation to complete",
    "Write timeout [127.0.0.1]:9",
    "Connection reset by peer",
)


@pytest.mark.parametrize("words", GLOO)
def test_what_gloo_says_of_a_peer_means_that_it_is_lost(words: str) -> None:
    assert is_peer_loss(RuntimeError(words))


@pytest.mark.parametrize(
    "words", ["mat1 and mat2 shapes cannot be multiplied", "CUDA out of memory", "index 7 is out of bounds"]
)
def test_a_fault_of_the_model_is_none_of_a_peer(words: str) -> None:
    assert not is_peer_loss(RuntimeError(words))
