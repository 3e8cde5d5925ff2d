"""Compiles every kernel of lists and lanes for an sm_90 GPU, on a machine without one; prints a name a line. Run by a test, outside Triton's interpreter.

Pointers' types follow from the arguments' names, which the kernels share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from rap_trainer.captured.jagged_inputs import fill_rest_kernel, gather_lists_kernel, share_rest_kernel
from rap_trainer.fusion.bases_kernel import bases_kernel
from rap_trainer.fusion.compare_kernel import compare_kernel
from rap_trainer.fusion.draw_kernel import draw_kernel
from rap_trainer.fusion.lanes_kernel import lanes_kernel
from rap_trainer.fusion.ops.codes import CODES
from rap_trainer.fusion.scan_kernel import scan_kernel
from rap_trainer.fusion.select_kernel import select_kernel
from rap_trainer.fusion.values_kernel import values_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

INT32 = ("offsets", "counts", "chosen", "drawn", "filled", "lengths", "overflow")
FLOAT32 = ("dense", "labels", "weights", "weights_ptr", "out_weights_ptr")
INT64 = (
    "entries", "totals", "tiles", "steps", "ints", "pointers", "bases", "ids", "counters", "selections", "hashes", "mixed", "row_ids", "lanes",
    "bundles", "comparisons", "draws", "features", "blocks", "block_totals", "ids_ptr", "offsets_ptr", "sources_ptr", "out_ptr", "filled_ptr",
)  # fmt: skip
TYPES = {
    **dict.fromkeys(INT32, "*i32"),
    **dict.fromkeys(FLOAT32, "*fp32"),
    **dict.fromkeys(INT64, "*i64"),
    **dict.fromkeys(("inverse_tiles", "inverse_bundle_tiles"), "i64"),
    "floats": "*fp64",
    **dict.fromkeys(("present", "places"), "*i8"),
}
INTEGERS = tuple(
    CODES[name]
    for name in (
        "fill_int", "sigrid_hash", "sigrid_hash_wide", "positive_modulus", "positive_modulus_wide", "low_bits", "clamp_int", "map_id",
        "bucketize_int", "enumerate", "local_hour", "local_hour_column", "constant", "in_range",
    )
)  # fmt: skip
FLOATS = tuple(
    CODES[name] for name in ("fill_float", "clamp_float", "logit", "boxcox", "boxcox_log", "log", "log1p", "affine")
)
MIXED = tuple(CODES[name] for name in ("onehot", "to_float", "bucketize"))
CHAINS = (INTEGERS, FLOATS, MIXED, ())
EVERY_STRUCTURE = 2**7 - 1
LISTS = {"CHAINS": ((CODES["sigrid_hash"],), ()), "WEIGHTED": True, "FLOAT": tl.float32}
GROUPED = {"FORM": (2**4 - 1, 2**6 - 1, EVERY_STRUCTURE, True, tl.float32), "ROWS": 32, "POSITIONS": 128}


def compiled(kernel: Any, constants: Mapping[str, Any], warps: int) -> str:
    """The name of the compiled kernel."""
    names = kernel.arg_names
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, {})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    return str(made.metadata.name)


def main() -> None:
    """Compiles all."""
    forms = ((0, 2, False), (2, 0, False), (2, 4, False), (1, 2, True))
    lanes = {
        "CHAINS": CHAINS,
        "FORMS": forms,
        "LENGTHS": True,
        "PRESENT": True,
        "COLUMNS": 8,
        "BUNDLE_ROWS": 64,
        "TILE": 512,
        "AHEAD": 2048,
    }
    cases: list[tuple[Any, dict[str, Any], int]] = [
        (lanes_kernel, LISTS | lanes, 4),
        *(
            (kernel, LISTS | GROUPED | {"PICKED": picked, "TILE": 128 * warps, "BALLOTS": warps == 1}, warps)
            for kernel, picked in ((values_kernel, True), (values_kernel, False), (select_kernel, False))
            for warps in (1, 4)
        ),
        (draw_kernel, {"ROWS": 4, "POSITIONS": 128, "BALLOTS": True}, 1),
        (scan_kernel, {"STRUCTURES": EVERY_STRUCTURE, "ROWS": 2048, "GROUP": 32}, 8),
        (bases_kernel, {"STAGES": 64, "FEATURES": 64}, 4),
        (compare_kernel, {"WIDTH": 32}, 1),
        (share_rest_kernel, {"TILE": 1024}, 4),
        (fill_rest_kernel, {"WEIGHTED": True, "TILE": 1024}, 8),
        *(
            (gather_lists_kernel, {"T_PADDED": 4, "SOURCES": way, "WEIGHTED": way, "TILE": 1024}, 8)
            for way in (True, False)
        ),
    ]
    for kernel, constants, warps in cases:
        print(compiled(kernel, constants, warps), flush=True)


if __name__ == "__main__":
    main()
