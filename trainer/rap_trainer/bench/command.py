"""`rap bench`: starts the ranks of a bench on this machine's GPUs, several batch sizes and plans one after the other."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

import torch
from rap_contract.pod import ExitCode


def rank_arguments(options: argparse.Namespace, plan: int, batch: int) -> list[str]:
    """The command line of the ranks of one combination."""
    arguments = ["--plan", str(plan), "--batch", str(batch), "--cases", options.cases]
    arguments += ["--max-rows", str(options.max_rows)]
    return arguments + ([] if options.timelines is None else ["--timelines", str(options.timelines)])


def combinations(options: argparse.Namespace, devices: int) -> list[tuple[int, int, int]]:
    """(plan, batch, GPUs) in order. Raises ValueError for more GPUs than there are."""
    wanted = options.gpus or sorted({1, devices})
    if max(wanted) > devices:
        raise ValueError(f"{max(wanted)} GPUs are wanted, this machine has {devices}")
    return [(plan, batch, gpus) for plan in options.plan for batch in options.batch for gpus in wanted]


def bench(options: argparse.Namespace) -> int:
    """Runs every combination; JSON lines go to standard output. Gives 2 without a GPU, 1 if a case failed."""
    devices = torch.cuda.device_count()
    if devices == 0:
        sys.stderr.write("rap bench compares training steps on GPUs, and this machine has none\n")
        return int(ExitCode.INVALID)
    try:
        chosen = combinations(options, devices)
    except ValueError as error:
        sys.stderr.write(f"--gpus: {error}\n")
        return int(ExitCode.INVALID)
    return max(_run(gpus, rank_arguments(options, plan, batch)) for plan, batch, gpus in chosen)


def _run(gpus: int, arguments: Sequence[str]) -> int:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    finished = subprocess.run([*launcher, "-m", "rap_trainer.bench", *arguments], check=False)  # noqa: S603  # our own
    return min(finished.returncode, 1)
