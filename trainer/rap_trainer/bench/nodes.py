"""Ranks of one host as if they were of several: what NCCL and the runtime must be told for that. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def as_nodes(environment: Mapping[str, str], nodes: int) -> dict[str, str]:
    """Variables of a rank of torchrun that make `nodes` hosts of its host, in equal blocks of ranks.

    Between the blocks NCCL has its socket transport over loopback on one channel, and no peer access; within them all is
    as before. Raises ValueError where the ranks cannot be divided.
    """
    size, local_rank = int(environment["WORLD_SIZE"]), int(environment["LOCAL_RANK"])
    if nodes < 1 or size % nodes:
        raise ValueError(f"{size} ranks are not {nodes} nodes of equal size")
    if nodes == 1:
        return {}
    return {
        "NCCL_HOSTID": f"node-{local_rank * nodes // size}",  # NCCL takes ranks of one id for one host
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_MAX_NCHANNELS": "1",
        "LOCAL_WORLD_SIZE": str(size // nodes),
    }
