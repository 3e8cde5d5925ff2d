"""Launches the kernels of a plan in order on the current stream. Allocates nothing and reads nothing back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rap_trainer.fusion.bases_kernel import bases_kernel
from rap_trainer.fusion.binding import Binding
from rap_trainer.fusion.buffers import DeviceTables, Outputs, Scratch
from rap_trainer.fusion.compare_kernel import compare_kernel
from rap_trainer.fusion.draw_kernel import draw_kernel
from rap_trainer.fusion.groups import Launch, Tiles, rows_of_program
from rap_trainer.fusion.lanes_kernel import lanes_kernel
from rap_trainer.fusion.ops.codes import CODES
from rap_trainer.fusion.ops.elements import DTYPE_CODES
from rap_trainer.fusion.scan_kernel import scan_kernel
from rap_trainer.fusion.select_kernel import select_kernel
from rap_trainer.fusion.values_kernel import values_kernel
from rap_trainer.fusion.warp import ONE_WARP_TILE
from rap_trainer.fusion.words import KIND_CODES, STRUCTURES

LANE_ROWS_PER_WARP = 128  # four a thread
COMPARE_REGISTERS = 56  # of 90 wanted: more programs at a time; 97 us where 48 take 100, 64 104 and 72 106 (plan 4 at 4096, one H200, 2026-12-01)
LIST_REGISTERS = 56  # of selections: 48 to 72 are as fast (plan 4 at 4096, one H200, 2026-12-01)
VALUE_REGISTERS = (
    64  # of 60 to 72 wanted: as many programs as a multiprocessor takes; 255 us where 56 take 260 and 72 282 (the same)
)
MAX_PIECES = 64  # of a group of rows, each a program
BOUNDED_WARPS = 4
INTERPRETED_PROGRAMS = 3  # on a CPU programs run one after the other: few, but more than one


@dataclass(frozen=True, kw_only=True)
class Runner:
    """One plan, ready to launch."""

    launches: tuple[Launch, ...]
    tiles: Tiles
    tables: DeviceTables
    scratch: Scratch
    num_slots: int
    capacities: tuple[int, ...]
    """Elements that each entry of the lists' table holds at most."""
    row_capacity: int
    """Rows of the largest batch."""
    num_features: int
    num_blocks: int
    writes_lengths: bool
    """Lengths of features that always hold the same number of ids."""
    num_multiprocessors: int | None
    """None: Triton's interpreter."""

    def run(self, binding: Binding, outputs: Outputs, *, max_programs: int | None = None) -> None:
        """Enqueues all launches; `max_programs` bounds the grid of each, so that it leaves room for others."""
        for number in range(len(self.launches)):
            self.run_one(number, binding, outputs, max_programs=max_programs)

    def run_one(self, number: int, binding: Binding, outputs: Outputs, *, max_programs: int | None = None) -> None:
        """Enqueues launch `number`; a later launch of a batch must not run before an earlier one has ended."""
        launch = self.launches[number]
        programs = self._programs(launch, binding.num_rows)
        if programs > 0:
            grid = (programs if max_programs is None else min(programs, max_programs),)
            kind = "draw" if launch.draws else launch.kernel
            getattr(self, f"_{kind}")(grid, launch, binding, outputs)

    def _programs(self, launch: Launch, num_rows: int) -> int:
        num = launch.end - launch.first
        if launch.kernel == "bases":
            return 1
        if num_rows == 0 and launch.kernel != "scan":
            return 0
        items = {
            "lanes": self._lane_items(launch, num_rows, self.tiles.lane),
            "select": num * triton.cdiv(num_rows, rows_of_program(launch, self.tiles)),
            "compare": num * num_rows,
        }.get(launch.kernel, num)
        if launch.draws:
            items = num * triton.cdiv(num_rows, self.tiles.draw[0])
        elif launch.kernel == "values":
            items = num * triton.cdiv(num_rows, rows_of_program(launch, self.tiles)) * self._pieces(launch)
        return int(items) if self.num_multiprocessors is not None else min(int(items), INTERPRETED_PROGRAMS)

    def _lane_items(self, launch: Launch, num_rows: int, tile: int) -> int:
        alone = launch.end - launch.first - sum(map(len, launch.bundles))
        rows = self._bundle_rows(tile)
        return len(launch.bundles) * -(-num_rows // rows) + alone * -(-num_rows // tile)

    def _bundle_rows(self, tile: int) -> int:
        return self.tiles.bundle_rows * tile // self.tiles.lane

    def _warps(self, grid: tuple[int], launch: Launch, num_rows: int) -> int:
        """Of a program that is best alone with one warp: more where the grid is bounded and programs are few."""
        return 1 if grid[0] == self._programs(launch, num_rows) else BOUNDED_WARPS

    def _ballots(self, warps: int) -> bool:
        """Of `warp`."""
        return warps == 1 and self.tiles.select[1] == ONE_WARP_TILE and self.num_multiprocessors is not None

    def _lanes(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        present = outputs.present_BF
        tile = self.tiles.lane if grid[0] == self._programs(launch, binding.num_rows) else self.tiles.wide_lane
        num_bundled = sum(map(len, launch.bundles))
        assert self._lane_items(launch, binding.num_rows, tile) * -(-binding.num_rows // tile) < 2**32  # `tile_of`
        lanes_kernel[grid](
            launch.first + num_bundled,
            launch.end - launch.first - num_bundled,
            _inverse(-(-binding.num_rows // tile)),
            self.tables.lanes,
            self.tables.bundles[4 * launch.first_bundle :],
            len(launch.bundles),
            _inverse(-(-binding.num_rows // self._bundle_rows(tile))),
            self.tables.steps,
            self.tables.ints,
            self.tables.floats,
            binding.pointers,
            self.num_slots,
            self.scratch.bases,
            outputs.dense_BD,
            outputs.dense_BD.stride(0),
            outputs.labels_B,
            outputs.ids_N,
            _weights(outputs),
            outputs.lengths_FB,
            outputs.ids_N if present is None else present,
            0 if present is None else present.stride(0),
            outputs.counters,
            binding.num_rows,
            CHAINS=tuple(_codes(form.chain) for form in launch.forms),
            FORMS=tuple((DTYPE_CODES[form.dtype], KIND_CODES[form.kind], form.is_list) for form in launch.forms),
            FLOAT=tl.float64 if launch.float64 else tl.float32,
            WEIGHTED=outputs.weights_N is not None,
            LENGTHS=self.writes_lengths,
            PRESENT=present is not None,
            COLUMNS=self.tiles.columns,
            BUNDLE_ROWS=self._bundle_rows(tile),
            TILE=tile,
            AHEAD=self.tiles.ahead,
            num_warps=max(4, tile // LANE_ROWS_PER_WARP),
        )

    def _scan(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        scan_kernel[grid](
            launch.first,
            launch.end,
            self.tables.entries,
            binding.pointers,
            self.num_slots,
            self.scratch.counts,
            self.scratch.offsets,
            self.scratch.filled,
            self.scratch.totals,
            outputs.lengths_FB,
            binding.num_rows,
            STRUCTURES=_structures(launch),
            ROWS=self.tiles.scan,
            GROUP=self.tiles.select[0],
            num_warps=self.tiles.scan_warps,
        )

    def _draw(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        del outputs
        draw_kernel[grid](
            launch.first,
            launch.end,
            self.tables.draws,
            binding.row_ids_B,
            binding.num_rows,
            self.row_capacity,
            self.scratch.drawn,
            self.scratch.places,
            ROWS=self.tiles.draw[0],
            POSITIONS=self.tiles.draw[1],
            BALLOTS=self.tiles.draw[1] == ONE_WARP_TILE and self.num_multiprocessors is not None,
            num_warps=1,
        )

    def _select(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        del outputs
        warps = self._warps(grid, launch, binding.num_rows)
        select_kernel[grid](
            launch.first,
            launch.end,
            self.tables.selections,
            binding.pointers,
            self.num_slots,
            self.scratch.offsets,
            self.scratch.counts,
            self.scratch.chosen,
            self.scratch.hashes,
            self.scratch.drawn,
            self.tables.mixed,
            self.tables.mixed.numel(),
            binding.row_ids_B,
            binding.num_rows,
            self.row_capacity,
            ROWS=self.tiles.select[0],
            TILE=self.tiles.select[1] * warps,
            POSITIONS=self.tiles.draw[1],
            BALLOTS=self._ballots(warps),
            num_warps=warps,
            maxnreg=LIST_REGISTERS,
        )

    def _bases(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        num_stages = launch.end - launch.first
        bases_kernel[grid](
            self.tables.entries,
            self.scratch.totals,
            launch.first,
            num_stages,
            self.tables.features,
            self.num_features,
            self.tables.blocks,
            self.num_blocks,
            self.scratch.bases,
            outputs.block_totals_P,
            outputs.overflow,
            binding.num_rows,
            STAGES=triton.next_power_of_2(num_stages),
            FEATURES=triton.next_power_of_2(max(self.num_features, 1)),
            num_warps=4,
        )

    def _values(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        warps = self._warps(grid, launch, binding.num_rows)
        values_kernel[grid](
            self.tables.entries,
            launch.first,
            launch.end - launch.first,
            self._pieces(launch),
            self.tables.steps,
            self.tables.ints,
            self.tables.floats,
            binding.pointers,
            self.num_slots,
            self.scratch.counts,
            self.scratch.offsets,
            self.scratch.filled,
            self.scratch.chosen,
            self.scratch.places,
            self.scratch.bases,
            outputs.ids_N,
            _weights(outputs),
            outputs.counters,
            binding.num_rows,
            self.row_capacity,
            outputs.ids_N.numel(),
            CHAINS=tuple(_codes(chain) for chain in launch.chains),
            FORM=(
                _bits(DTYPE_CODES[dtype] for dtype in launch.dtypes),
                _bits(KIND_CODES[kind] for kind in launch.kinds),
                _structures(launch),
                outputs.weights_N is not None,
                tl.float64 if launch.float64 else tl.float32,
            ),
            PICKED=launch.picked,
            ROWS=rows_of_program(launch, self.tiles),
            TILE=self.tiles.select[1] * warps,
            POSITIONS=self.tiles.draw[1],
            BALLOTS=self._ballots(warps),
            num_warps=warps,
            maxnreg=VALUE_REGISTERS,
        )

    def _pieces(self, launch: Launch) -> int:
        """Programs that take turns with the tiles of a group of rows: several where lists may be long."""
        groups = triton.cdiv(self.row_capacity, rows_of_program(launch, self.tiles))
        tiles = max(self.capacities[launch.first : launch.end]) // (groups * self.tiles.select[1])
        return min(triton.cdiv(tiles, self.tiles.long), MAX_PIECES) or 1

    def _compare(self, grid: tuple[int], launch: Launch, binding: Binding, outputs: Outputs) -> None:
        del outputs
        compare_kernel[grid](
            launch.first,
            launch.end,
            self.tables.comparisons,
            binding.pointers,
            self.num_slots,
            self.scratch.offsets,
            self.scratch.counts,
            self.scratch.chosen,
            binding.num_rows,
            WIDTH=self.tiles.compare,
            num_warps=1,
            maxnreg=COMPARE_REGISTERS,
        )


def _inverse(divisor: int) -> int:
    """For `lanes_kernel.tile_of`; in int64 whatever the divisor, so that the kernel is compiled once."""
    return 2**32 // divisor + 1


def _weights(outputs: Outputs) -> torch.Tensor:
    """The weights buffer, or any pointer where the kernel is compiled without weights."""
    return outputs.ids_N if outputs.weights_N is None else outputs.weights_N


def _structures(launch: Launch) -> int:
    return _bits(STRUCTURES.index(kind) for kind in launch.structures)


def _bits(codes: Iterable[int]) -> int:
    """A set of codes."""
    return sum(1 << code for code in codes)


def _codes(chain: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(CODES[name] for name in chain)
