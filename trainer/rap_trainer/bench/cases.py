"""What `rap bench` runs and its options. Light: the command line is parsed before anything heavy is imported."""

from __future__ import annotations

import argparse
from pathlib import Path

from rap_trainer.bench.results import RUNGS

SCHEDULES = "rap:inline/0+output_dist/0+mlp_fwd/0+grad_dist/0+emb_bwd/0"
DEFAULT_CASES = ",".join(
    (
        "loop",
        "sequential",
        "pipeline",
        "compile",
        "cpu",
        "rap-eager",
        "pipeline-ideal",
        *(case for case, _ in RUNGS[1:]),
        SCHEDULES,
    )
)
SECONDS = 2.0
"""Of measured steps a case: 5 repeats of 40 steps wherever a step takes 10 ms or less."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `rap bench`."""
    parser.add_argument("--plan", type=int, nargs="+", default=[0], choices=range(5), help="plans, 0 to 4")
    parser.add_argument("--batch", type=int, nargs="+", default=[4096, 8192], help="rows a GPU")
    parser.add_argument("--gpus", type=int, nargs="+", default=None, help="numbers of GPUs; default: 1 and all")
    parser.add_argument("--cases", default=DEFAULT_CASES, help="see `python -m rap_trainer.bench --help`")
    parser.add_argument("--units", type=Path, help="instead of the three: a JSON file of [plan, batch, case] in order")
    parser.add_argument("--max-rows", type=int, default=1_000_000, help="cap of every table")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measured steps of a case: fewer where slow")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds a case may take before it is given up")
    parser.add_argument("--budget", type=float, default=None, help="seconds in all: what does not fit is reported so")
    parser.add_argument("--timelines", type=Path, default=None, help="folder for kernel timelines")
    parser.add_argument("--nodes", type=int, default=1, help="take this host's GPUs for those of so many hosts")
