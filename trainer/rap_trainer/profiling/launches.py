"""How long each launch of a fused program takes alone on a GPU: many in one CUDA graph, inputs rotating past the L2.

Not here: which programs are worth measuring, and what becomes of the numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from rap_contract.graph import FeatureGraph
from rap_contract.profile import KernelSample

from rap_trainer.batch import RawBatch
from rap_trainer.fusion.binding import Binding
from rap_trainer.fusion.buffers import Outputs
from rap_trainer.fusion.layout import OutputLayout
from rap_trainer.fusion.program import FusedProgram, Limits
from rap_trainer.plan.launch_work import Sizes, works_of
from rap_trainer.profiling.batches import workload_of

ROUNDS = 4
"""Passes over the input sets in one graph."""
REPLAYS = 7
"""Of which the median counts; two more warm up."""


class BoundProgram(NamedTuple):
    """A program and the batch it runs on."""

    program: FusedProgram
    binding: Binding
    outputs: Outputs

    def launch(self, kernel: int, *, max_programs: int | None = None) -> None:
        """Enqueues one kernel, on what the kernels before it have left."""
        self.program.launch_kernel(kernel, self.binding, self.outputs, max_programs=max_programs)


def bound_programs(graph: FeatureGraph, batches: Sequence[RawBatch], device: torch.device) -> list[BoundProgram]:
    """The graph's program for each of these batches, launched once.

    Each has scratch of its own: a kernel alone reads what earlier kernels left of its own batch. Places in another batch's lists lie beyond
    the end of shorter ones.
    """
    capacities = {
        name: max(batch.columns[name].values_N.numel() for batch in batches)
        for name, value in graph.columns.items()
        if value.is_list and name in batches[0].columns
    }
    rows = batches[0].num_rows
    limits = Limits(batch_size=rows, capacities=capacities, nullable=_nullable(batches))
    layout = layout_of(graph, single_lists(batches))
    found = []
    for batch in batches:
        program = FusedProgram(graph, device, limits=limits, layout=layout)
        present = torch.zeros(rows, len(graph.sparse), dtype=torch.int8, device=device) if layout.padded else None
        bound = BoundProgram(program, program.bind(batch), program.new_outputs(present_BF=present))
        program.launch(bound.binding, bound.outputs)
        found.append(bound)
    return found


def launch_samples(
    graph: FeatureGraph, batches: Sequence[RawBatch], device: torch.device, *, grids: Sequence[int | None] = (None,)
) -> list[KernelSample]:
    """Every launch of the graph's program over these batches (several, so that inputs are not in the cache). GPU only."""
    bound = bound_programs(graph, batches, device)
    sizes = Sizes.of(graph, batches[0].num_rows, workload_of(batches), _nullable(batches))
    found = []
    for number, work in enumerate(works_of(bound[0].program.groups, sizes)):
        for grid in grids:
            runs = [partial(each.launch, number, max_programs=grid) for each in bound]
            found.append(work.sample(number, programs=grid, seconds=graph_seconds(runs)[0]))
    return found


def _nullable(batches: Sequence[RawBatch]) -> frozenset[str]:
    """Columns of these batches that come with null flags."""
    return frozenset(name for name, column in batches[0].columns.items() if column.nulls_N is not None)


def single_lists(batches: Sequence[RawBatch]) -> frozenset[str]:
    """List columns that hold one element in every row of these batches."""
    names = [name for name, column in batches[0].columns.items() if column.lengths_B is not None]
    return frozenset(name for name in names if all(_is_single(batch.columns[name].lengths_B) for batch in batches))


def _is_single(lengths_B: torch.Tensor | None) -> bool:
    return lengths_B is not None and bool((lengths_B == 1).all())


def layout_of(graph: FeatureGraph, single: frozenset[str] = frozenset()) -> OutputLayout:
    """Fixed places where every feature has at most one id a row, as the captured runtime has them; else packed lists."""
    layout = OutputLayout.one_id_each([feature.name for feature in graph.sparse], single=single)
    try:
        layout.check(graph)
    except ValueError:
        return OutputLayout.plain(graph)
    return layout


def graph_seconds(runs: Sequence[Callable[[], object]], *, rounds: int = ROUNDS) -> tuple[float, float]:
    """(median, relative spread) seconds of one run, all captured one after the other."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs:
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(rounds):
            for run in runs:
                run()
    times = []
    for _ in range(REPLAYS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch leaves it untyped
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / (rounds * len(runs)))
    times = sorted(times[2:])
    middle = statistics.median(times)
    return middle, (times[-1] - times[0]) / middle
