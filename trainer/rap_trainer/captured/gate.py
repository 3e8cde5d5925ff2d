"""Lets the tables' backward sort its ids long before their gradients arrive.

FBGEMM's backward is one call: it linearises and sorts ids, which depend on the batch alone, and then reads the gradients.
While the step is captured it is called on the lookup's lane as if the gradients were there already, and behind what the
lookup itself waited for, so that ids are sorted before and beside the lookup and no update waits for them. The gate then adds the missing edge
to the graph: from whatever completes the gradients to the first kernel of that call that is not known to touch ids only. An unknown kernel is
taken to read gradients, so a new FBGEMM costs time, never correctness.

With 30 million ids (plan 4) sorting takes 1.9 ms wherever it stands: its kernels are of 512 threads and more, which find no room between
the blocks of a lookup or a product of matrices even with priority, so they run between them, and the step is as long either way (H200).

The lookup's memory is safe from what runs beside it: all it reads and writes is kept for its backward. About 100 us of a step leave the
critical path (H200, 27 tables, batch 4096). Only for captures: outside one, order the
streams. Needs cuda-bindings, which torch requires on Linux.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import torch

IDS_ONLY = (
    b"linearize_index",
    b"RadixSort",
    b"RunLength",
    b"ReduceByKey",
    b"DeviceScan",
    b"DeviceCompactInit",
    b"FillFunctor",
    b"find_long_segments",
    b"grad_indice_weights",
    b"fill_rest",
    b"share_rest",
)
"""Parts of the names of kernels that read and write ids and their positions only (FBGEMM 1.6, CUB of CUDA 13, `jagged_inputs`); grad_indice_weights
writes zeros, for `assemble` tells it that weights of ids learn nothing."""


class GateError(RuntimeError):
    """The graph does not look as the gate expects; nothing was changed."""


class GradientGate:
    """For one capture: `before_lookup`, then `gradients_ready`, `ids_known` and `backward_enqueued`, each with its stream current."""

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._ready: list[Any] = []

    def before_lookup(self) -> None:
        """On the lane, when the ids are there."""
        _, self._before = _captured()

    def ids_known(self) -> None:
        """On the lane, before the backward is called: what comes next waits for no more than the lookup did."""
        driver = _driver()
        how = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        edges = [driver.CUgraphEdgeData() for _ in self._before]
        stream = torch.cuda.current_stream().cuda_stream
        _checked(driver.cuStreamUpdateCaptureDependencies(stream, self._before, edges, len(edges), int(how)))

    def gradients_ready(self) -> None:
        """On the training stream, after whatever completes the gradients."""
        _, self._ready = _captured()

    def backward_enqueued(self) -> None:
        """On the lane, after the backward was called. Raises GateError."""
        graph, last = _captured()
        nodes = _chain(last, self._before)
        if not nodes:
            raise GateError("the backward enqueued nothing")
        early = list(takewhile(_ids_only, nodes[:-1]))
        _hurry(early)
        _add_edges(graph, self._ready, nodes[len(early)])


def _chain(last: list[Any], before: list[Any]) -> list[Any]:
    """The nodes after `before` up to `last`, in order."""
    known = {int(node) for node in before}
    nodes: list[Any] = []
    here = last
    while len(here) == 1 and int(here[0]) not in known:
        nodes.append(here[0])
        here = _dependencies(here[0])
    if {int(node) for node in here} != known:
        raise GateError("the tables' backward is not one chain of kernels on its stream")
    return nodes[::-1]


def _driver() -> Any:
    from cuda.bindings import driver  # type: ignore[import-untyped]  # it ships no types

    return driver


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *values = result
    if int(error) != 0:
        raise GateError(f"a graph query failed: {error}")
    return tuple(values)


def _captured() -> tuple[Any, list[Any]]:
    """The graph being captured, and what the next work on the current stream would depend on."""
    stream = torch.cuda.current_stream().cuda_stream
    status, _, graph, nodes, *_ = _checked(_driver().cuStreamGetCaptureInfo(stream))
    if int(status) != 1:
        raise GateError("the stream is not being captured")
    return graph, list(nodes)


def _dependencies(node: Any) -> list[Any]:
    count = _checked(_driver().cuGraphNodeGetDependencies(node))[-1]
    return list(_checked(_driver().cuGraphNodeGetDependencies(node, count))[0]) if count else []


def _ids_only(node: Any) -> bool:
    driver = _driver()
    kind = _checked(driver.cuGraphNodeGetType(node))[0]
    if kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET:
        return True
    if kind != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return False
    parameters = _checked(driver.cuGraphKernelNodeGetParams(node))[0]
    if int(parameters.func):
        name = _checked(driver.cuFuncGetName(parameters.func))[0]
    else:
        name = _checked(driver.cuKernelGetName(parameters.kern))[0]
    return any(part in name for part in IDS_ONLY)


def _hurry(nodes: list[Any]) -> None:
    """Blocks of these kernels go first wherever a multiprocessor has room."""
    driver = _driver()
    greatest = _checked(driver.cuCtxGetStreamPriorityRange())[1]
    value = driver.CUkernelNodeAttrValue()
    value.priority = greatest
    name = driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    for node in nodes:
        if _checked(driver.cuGraphNodeGetType(node))[0] == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            _checked(driver.cuGraphKernelNodeSetAttribute(node, name, value))


def _add_edges(graph: Any, sources: list[Any], target: Any) -> None:
    have = {int(node) for node in _dependencies(target)}
    sources = [node for node in sources if int(node) not in have]
    if sources:
        edges = [_driver().CUgraphEdgeData() for _ in sources]
        _checked(_driver().cuGraphAddDependencies(graph, sources, [target] * len(sources), edges, len(sources)))
