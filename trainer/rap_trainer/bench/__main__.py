"""One rank of a bench: `torchrun --nproc-per-node N -m rap_trainer.bench ...`."""

import faulthandler
import os
import sys
import warnings

from rap_trainer.captured.symmetric_exchange import MULTICAST_OFF

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    os.environ.setdefault(MULTICAST_OFF, "1")
    faulthandler.enable()
    from rap_trainer.bench.run import main

    sys.exit(main())
