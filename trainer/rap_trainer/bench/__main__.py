"""One rank of a bench: `torchrun --nproc-per-node N -m rap_trainer.bench ...`."""

import faulthandler
import os
import sys
import warnings

from rap_trainer.captured.symmetric_exchange import MULTICAST_OFF

WATCHDOG_S = float(os.environ.get("RAP_BENCH_WATCHDOG_S", "600"))

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    os.environ.setdefault(MULTICAST_OFF, "1")
    faulthandler.enable()
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)  # a hung collective must not hold the machine
    from rap_trainer.bench.run import main

    sys.exit(main())
