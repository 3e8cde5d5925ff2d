"""The modulus by one number equals Python's, whatever the sign, the size and the layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rap_trainer.ops.modulus import floor_mod_, floor_mods_

BOUNDS = {torch.int64: 2**63, torch.int32: 2**31}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@given(data=st.data())
def test_every_integer_leaves_pythons_remainder(dtype: torch.dtype, data: st.DataObject) -> None:
    bound = BOUNDS[dtype]
    numbers = st.integers(-bound, bound - 1) | st.sampled_from([-bound, -bound + 1, -1, 0, 1, bound - 1])
    values = data.draw(st.lists(numbers, max_size=40))
    divisor = data.draw(st.integers(1, bound - 1) | st.sampled_from([1, 2, 3, 10**9, bound - 1]))
    values_N = torch.tensor(values, dtype=dtype)
    assert floor_mod_(values_N, divisor) is values_N
    assert values_N.tolist() == [value % divisor for value in values]


def test_a_part_of_a_larger_tensor_is_changed_alone() -> None:
    values_AB = torch.arange(-6, 6).view(3, 4)
    floor_mod_(values_AB[:, 1], 4)
    assert values_AB.tolist() == [[-6, 3, -4, -3], [-2, 3, 0, 1], [2, 3, 4, 5]]


def test_parts_have_divisors_of_their_own() -> None:
    values_N = torch.arange(-5, 5)
    floor_mods_(values_N, [3, 10**12, 1], [4, 0, 6])
    assert values_N.tolist() == [1, 2, 0, 1, 0, 0, 0, 0, 0, 0]
