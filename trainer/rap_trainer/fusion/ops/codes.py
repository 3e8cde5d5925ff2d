# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton functions are compiled from their source; their arguments have no Python types.
"""Numbers of the element functions: what a step's first word says. No op itself."""

from __future__ import annotations

import triton
import triton.language as tl

NAMES = (
    "fill_int",
    "fill_float",
    "sigrid_hash",
    "positive_modulus",
    "clamp_int",
    "clamp_float",
    "bucketize",
    "bucketize_int",
    "logit",
    "boxcox",
    "boxcox_log",
    "log",
    "log1p",
    "onehot",
    "map_id",
    "enumerate",
    "local_hour",
    "local_hour_column",
    "affine",
    "to_float",
    "constant",
    "in_range",
    "sigrid_hash_wide",
    "positive_modulus_wide",
    "low_bits",
)
"""Element functions by code; `_wide` ones take any divisor, `low_bits` powers of two. `to_float`, `constant` and `in_range` belong to no op: a cast, a known result, `out_of_range: zero`."""
CODES = {name: code for code, name in enumerate(NAMES)}

FILL_INT = tl.constexpr(CODES["fill_int"])
FILL_FLOAT = tl.constexpr(CODES["fill_float"])
SIGRID_HASH = tl.constexpr(CODES["sigrid_hash"])
POSITIVE_MODULUS = tl.constexpr(CODES["positive_modulus"])
CLAMP_INT = tl.constexpr(CODES["clamp_int"])
CLAMP_FLOAT = tl.constexpr(CODES["clamp_float"])
BUCKETIZE = tl.constexpr(CODES["bucketize"])
BUCKETIZE_INT = tl.constexpr(CODES["bucketize_int"])
LOGIT = tl.constexpr(CODES["logit"])
BOXCOX = tl.constexpr(CODES["boxcox"])
BOXCOX_LOG = tl.constexpr(CODES["boxcox_log"])
LOG = tl.constexpr(CODES["log"])
LOG1P = tl.constexpr(CODES["log1p"])
ONEHOT = tl.constexpr(CODES["onehot"])
MAP_ID = tl.constexpr(CODES["map_id"])
ENUMERATE = tl.constexpr(CODES["enumerate"])
LOCAL_HOUR = tl.constexpr(CODES["local_hour"])
LOCAL_HOUR_COLUMN = tl.constexpr(CODES["local_hour_column"])
AFFINE = tl.constexpr(CODES["affine"])
TO_FLOAT = tl.constexpr(CODES["to_float"])
CONSTANT = tl.constexpr(CODES["constant"])
IN_RANGE = tl.constexpr(CODES["in_range"])
SIGRID_HASH_WIDE = tl.constexpr(CODES["sigrid_hash_wide"])
POSITIVE_MODULUS_WIDE = tl.constexpr(CODES["positive_modulus_wide"])
LOW_BITS = tl.constexpr(CODES["low_bits"])


@triton.constexpr_function
def holds(mask, code):
    """Whether a set of codes, as bits, holds one; decided when a kernel is compiled."""
    return (mask >> code) & 1 == 1


@triton.constexpr_function
def only(mask):
    """The code that a set of codes holds, or -1 if it holds several."""
    return mask.bit_length() - 1 if mask & (mask - 1) == 0 else -1
