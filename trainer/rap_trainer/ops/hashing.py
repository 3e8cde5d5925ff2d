"""The 64-bit hash of SEMANTICS: unsigned wrapping arithmetic carried out on int64 tensors.

Two's complement addition, multiplication and left shift do not tell signed from unsigned; only a
right shift does, so it is masked. Sums of left shifts are multiplications, which cost one pass over
memory instead of three; all passes after the first work in place on two buffers of their own.
"""

from __future__ import annotations

import torch

K = 0x9DDFEA08EB382D69 - 2**64  # multiplier of hash_128_to_64, as a signed number


def twang_mix64(k: torch.Tensor) -> torch.Tensor:
    """Thomas Wang's 64-bit mix of an int64 tensor of any shape."""
    k = k * ((1 << 21) - 1)  # ~k + (k << 21) is k * (2^21 - 1) - 1
    return _mixed(k.sub_(1), torch.empty_like(k))


def hash_128_to_64(u: torch.Tensor | int, l: torch.Tensor) -> torch.Tensor:  # noqa: E741  # the name of SEMANTICS
    """The hash of two 64-bit words, int64; `u` broadcasts."""
    return _hashed(u, l ^ u, torch.empty_like(l))


def salted_hash(salt: int, ids: torch.Tensor) -> torch.Tensor:
    """hash_128_to_64(u=salt, l=twang_mix64(ids)), with fewer buffers."""
    k = ids * ((1 << 21) - 1)
    scratch = torch.empty_like(k)
    k = _mixed(k.sub_(1), scratch)
    return _hashed(salt, k.bitwise_xor_(salt) if salt else k, scratch)


def _mixed(k: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """What follows the first step of twang_mix64, in place."""
    _xor_shifted(k, 24, scratch).mul_(1 + (1 << 3) + (1 << 8))
    _xor_shifted(k, 14, scratch).mul_(1 + (1 << 2) + (1 << 4))
    return _xor_shifted(k, 28, scratch).mul_(1 + (1 << 31))


def _hashed(u: torch.Tensor | int, mixed: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
    """hash_128_to_64 of l = mixed ^ u, in place."""
    a = _xor_shifted(mixed.mul_(K), 47, scratch)
    b = a if isinstance(u, int) and u == 0 else a.bitwise_xor_(u)
    return _xor_shifted(b.mul_(K), 47, scratch).mul_(K)


def _xor_shifted(k: torch.Tensor, bits: int, scratch: torch.Tensor) -> torch.Tensor:
    """k ^= k >> bits with a logical shift, in place."""
    torch.bitwise_right_shift(k, bits, out=scratch)
    return k.bitwise_xor_(scratch.bitwise_and_((1 << (64 - bits)) - 1))
