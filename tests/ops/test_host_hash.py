"""The hash as a host computes it equals the one every device computes, and SEMANTICS' own words of Python."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.ops.hashing import hash_128_to_64, salted_hash, twang_mix64

INT64 = st.integers(-(2**63), 2**63 - 1)
WORD = 2**64


def in_python(salt: int, x: int) -> int:
    k = x % WORD
    k = ((~k) + (k << 21)) % WORD
    k ^= k >> 24
    k = (k + (k << 3) + (k << 8)) % WORD
    k ^= k >> 14
    k = (k + (k << 2) + (k << 4)) % WORD
    k ^= k >> 28
    k = (k + (k << 31)) % WORD
    u, multiplier = salt % WORD, 0x9DDFEA08EB382D69
    a = ((k ^ u) * multiplier) % WORD
    a ^= a >> 47
    b = ((u ^ a) * multiplier) % WORD
    b ^= b >> 47
    b = (b * multiplier) % WORD
    return b - WORD if b >= WORD // 2 else b


@given(salt=st.sampled_from([0, 1, -1]) | INT64, ids=st.lists(INT64, max_size=30))
def test_a_hosts_hash_equals_a_devices_and_the_definition(salt: int, ids: list[int]) -> None:
    ids_N = torch.tensor(ids, dtype=torch.int64)
    hashed = salted_hash(salt, ids_N).tolist()
    assert hashed == hash_128_to_64(salt, twang_mix64(ids_N)).tolist()
    assert hashed == [in_python(salt, each) for each in ids]
    assert ids_N.tolist() == ids
