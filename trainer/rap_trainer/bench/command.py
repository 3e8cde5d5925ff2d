"""`rap bench`: starts the ranks of a bench on this machine's GPUs, again where a case has ruined them.

A failed capture or a hung collective leaves a process nothing can be measured in. So the ranks end with the case that
failed, and new ones take what remains: one case never costs another its result.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from rap_contract.pod import ExitCode

from rap_trainer.bench.units import Unit, from_argument, remaining, to_argument, units_of

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one start of the ranks came to."""

    ended: tuple[Unit, ...]
    """Units with a result or an error of their own."""
    failed: bool
    died: str | None = None
    """Why the ranks ended without a word about the unit they were at."""


def gpu_counts(wanted: Sequence[int] | None, devices: int) -> list[int]:
    """Numbers of GPUs to run on, in order. Raises ValueError for more than there are."""
    counts = list(wanted or sorted({1, devices}))
    if max(counts) > devices:
        raise ValueError(f"{max(counts)} GPUs are wanted, this machine has {devices}")
    return counts


def bench(options: argparse.Namespace) -> int:
    """Runs every combination; JSON lines go to standard output. Gives 2 without a GPU, 1 if a case failed."""
    devices = torch.cuda.device_count()
    if devices == 0:
        sys.stderr.write("rap bench compares training steps on GPUs, and this machine has none\n")
        return int(ExitCode.INVALID)
    try:
        counts = gpu_counts(options.gpus, devices)
    except ValueError as error:
        sys.stderr.write(f"--gpus: {error}\n")
        return int(ExitCode.INVALID)
    date = datetime.now(tz=UTC).strftime("%Y-%m-%d")
    _emit({"case": "run", "date": date, "cpus": os.cpu_count(), "command": f"rap {shlex.join(sys.argv[1:])}"})
    units = units_of(options.plan, options.batch, options.cases.split(","))
    if options.units is not None:
        units = from_argument(options.units.read_text())
    until_s = None if options.budget is None else time.monotonic() + options.budget
    failed = [run_units(units, gpus, options, until_s=until_s) for gpus in counts]
    return int(any(failed))


def run_units(units: Sequence[Unit], gpus: int, options: argparse.Namespace, *, until_s: float | None) -> bool:
    """All units on so many GPUs, with new ranks after each failure; whether any failed."""
    failed = False
    while units:
        if until_s is not None and time.monotonic() > until_s:
            for unit in units:
                _emit(_failure(unit, gpus, "not run: the time of the bench was up"))
            return True
        outcome = run_ranks(rank_command(units, gpus, options, until_s=until_s), units, _emit)
        units = remaining(units, outcome.ended)
        failed |= outcome.failed
        if outcome.died is not None and units:
            _emit(_failure(units[0], gpus, outcome.died))
            units = units[1:]
    return failed


def rank_command(
    units: Sequence[Unit], gpus: int, options: argparse.Namespace, *, until_s: float | None = None
) -> list[str]:
    """The command line of the ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    command += ["-m", "rap_trainer.bench", "--units", to_argument(units), "--max-rows", str(options.max_rows)]
    command += ["--seconds", str(options.seconds), "--limit", str(options.limit), "--nodes", str(options.nodes)]
    if until_s is not None:
        command += ["--until", str(until_s)]
    return command + ([] if options.timelines is None else ["--timelines", str(options.timelines)])


def run_ranks(command: Sequence[str], units: Sequence[Unit], emit: Emit) -> Outcome:
    """Runs ranks to their end and passes their lines on."""
    ended: list[Unit] = []
    failed = last_failed = False
    # torchrun sets one thread for several ranks and leaves all cores to a lone one, whose packing threads then fight for
    # them: rap on one of two GPUs spent 24 ms a step packing, on two GPUs 0.3 (H200 host, 32 cores, 2026-11-30)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:  # noqa: S603  # our own
        assert process.stdout is not None
        for text in process.stdout:
            line = _parsed(text)
            if line is None:
                sys.stderr.write(text)
            elif line.get("ended"):
                ended += [unit for unit in units if unit.answered_by(line)]
                last_failed = bool(line.get("failed"))
                failed |= last_failed
            else:
                emit(line)
    code = process.returncode
    if code == 0 or last_failed:
        return Outcome(ended=tuple(ended), failed=failed)
    return Outcome(ended=tuple(ended), failed=True, died=f"the ranks ended with code {code}: out of time, or killed")


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _failure(unit: Unit, gpus: int, error: str) -> dict[str, Any]:
    return {"plan": unit.plan, "batch": unit.batch, "gpus": gpus, "unit": unit.case, "case": unit.case, "error": error}


def _emit(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
