"""`rap profile`: starts the ranks that measure, and says what they found."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rap_contract.pod import ExitCode
from rap_contract.problem import InvalidDocument, Problem
from rap_contract.profile import Profile
from rap_contract.windows import HOST_GAPS, OPTIMIZER, PLACES
from rap_planner.cost import Costs
from rap_planner.fit import CRITERION, held_out, share_within

from rap_trainer.cores import threads_of_rank, usable_cores
from rap_trainer.jobfile import load_job

MS, US = 1e3, 1e6  # in a second
LIMIT_S = 600.0
"""Ranks that have not ended by then never will: `--seconds` bounds what they measure to a fraction of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `rap profile`."""
    add = parser.add_argument
    add("job", type=Path, metavar="JOB.yaml")
    add("--out", type=Path, default=Path("profile.json"), metavar="P", help="where to write it; default profile.json")
    add("--nproc", type=int, default=None, metavar="N", help="ranks on this machine; default: the job's")
    add("--mean-length", type=float, default=1.0, metavar="L", help="mean list length of the data measured with")
    add("--seconds", type=float, default=90.0, metavar="S", help="for measurements, start-up apart")
    kinds = "another job whose kernels price kinds of kernels, too (GPU); may be given again"
    add("--kernels", type=Path, action="append", default=[], metavar="JOB.yaml", help=kinds)


def run(arguments: argparse.Namespace) -> int:
    """Measures, writes and prints; returns an exit code. Raises InvalidDocument for a bad job or ranks that failed."""
    job = load_job(arguments.job)
    ranks = arguments.nproc or job.spec.trainer.ranks_per_node
    if not os.access(arguments.out.parent, os.W_OK):  # told before anything is measured for it
        hint = "give --out a path in a folder that exists and may be written"
        raise InvalidDocument([Problem(path=(), message=f"{arguments.out}: cannot be written", hint=hint)])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "rap_trainer.profiling.rank", str(arguments.job), "--out", str(arguments.out)]
    command += ["--date", time.strftime("%Y-%m-%d"), "--mean-length", str(arguments.mean_length)]
    command += ["--seconds", str(arguments.seconds)]
    for other in arguments.kernels:
        load_job(other)  # a bad one is told before any rank starts
        command += ["--kernels", str(other)]
    began = time.monotonic()
    threads = str(threads_of_rank(job.spec.source, ranks, usable_cores()))
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {"OMP_NUM_THREADS": threads, "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"} | dict(os.environ)
    environment["PYTHONPATH"] = paths
    try:
        code = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False).returncode  # noqa: S603  # our own
    except subprocess.TimeoutExpired:
        code = -1
    if code != 0:
        message = f"the ranks that measure ended with code {code}; what went wrong is above"
        raise InvalidDocument([Problem(path=(), message=message, hint="does `rap run` train this job here?")])
    profile = Profile.from_json(arguments.out.read_text())
    print("\n".join(summary(profile, str(arguments.out), seconds=time.monotonic() - began)))
    return ExitCode.DONE


def summary(profile: Profile, path: str, *, seconds: float) -> Iterator[str]:
    """What a person wants to know of a profile."""
    device = profile.device
    yield f"{path}: {profile.hash}, {device.name}, {profile.num_ranks} rank(s), {profile.runtime} step, {seconds:.0f} s"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(device.versions.items()))
    yield f"driver {device.driver}; {versions}"
    yield f"step {profile.step_seconds * MS:.3f} ms without preprocessing, of {profile.batch_size} rows a rank"
    yield "window        long us   hides us: work that runs beside it while the step slows by less than 1 %"
    costs = Costs(profile)
    for name in PLACES:
        length = profile.window(name).seconds
        shown = "" if length is None else f"{length * US:.1f}"
        yield f"{name:12} {shown:>8}   {costs.capacity_seconds(name) * US:.1f}"
    for name, what in ((OPTIMIZER, "beside emb_bwd"), (HOST_GAPS, "between two steps")):
        long = next((window.seconds for window in profile.windows if window.name == name), None)
        if long is not None:
            yield f"{name:12} {long * US:>8.1f}   {what}; nothing is placed there"
    link = profile.links
    if profile.num_ranks > 1:
        yield f"links {link.bytes_per_second / 1e9:.1f} GB/s a rank, latency {link.latency_seconds * US:.0f} us"
    found = held_out(profile.samples)
    share = share_within(found)
    yield (
        f"{len(profile.samples)} kernels alone; {100 * share:.1f} % of {len(found)} held out are predicted within "
        f"{100 * CRITERION:.0f} %, nine of ten within {100 * profile.coefficients.error_ratio:.0f} %"
    )
