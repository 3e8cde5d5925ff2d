"""The 64-bit hash of SEMANTICS: unsigned wrapping arithmetic carried out on int64 tensors.

Two's complement addition, multiplication and left shift do not tell signed from unsigned; only a
right shift does, so it is masked. `out of place`: no function writes into its input.
"""

from __future__ import annotations

import torch

K = 0x9DDFEA08EB382D69 - 2**64  # multiplier of hash_128_to_64, as a signed number


def _mixed_right(k: torch.Tensor, bits: int) -> torch.Tensor:
    """k ^ (k >> bits) with a logical shift."""
    return torch.bitwise_right_shift(k, bits).bitwise_and_((1 << (64 - bits)) - 1).bitwise_xor_(k)


def twang_mix64(k: torch.Tensor) -> torch.Tensor:
    """Thomas Wang's 64-bit mix of an int64 tensor of any shape."""
    k = k * ((1 << 21) - 1) - 1  # ~k + (k << 21) = -k - 1 + k * 2^21
    k = _mixed_right(k, 24)
    k.mul_(1 + (1 << 3) + (1 << 8))
    k = _mixed_right(k, 14)
    k.mul_(1 + (1 << 2) + (1 << 4))
    k = _mixed_right(k, 28)
    return k.mul_(1 + (1 << 31))


def hash_128_to_64(u: torch.Tensor | int, l: torch.Tensor) -> torch.Tensor:  # noqa: E741  # the name of SEMANTICS
    """The hash of two 64-bit words, int64; `u` broadcasts."""
    a = torch.bitwise_xor(l, u).mul_(K)
    a = _mixed_right(a, 47)
    b = a.bitwise_xor_(u).mul_(K)
    return _mixed_right(b, 47).mul_(K)


def signed(word: int) -> int:
    """An unsigned or signed 64-bit word as the signed number with the same bits."""
    return (word + 2**63) % 2**64 - 2**63
