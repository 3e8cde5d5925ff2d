"""Training steps of a plan, every baseline in one run: torchrun --nproc-per-node N trainer/benchmarks/step_bench.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("rap_trainer.bench", run_name="__main__")
