"""Training steps of a plan, every baseline in one run: torchrun --nproc-per-node N trainer/benchmarks/step_bench.py."""

import faulthandler
import os
import sys
import warnings

WATCHDOG_S = float(os.environ.get("RAP_BENCH_WATCHDOG_S", "300"))

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    faulthandler.enable()
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)  # a hung collective must not hold the machine
    from rap_trainer.bench.run import main

    sys.exit(main())
