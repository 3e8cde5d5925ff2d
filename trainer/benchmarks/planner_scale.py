"""How long a search takes and what memory it needs: random jobs of many features and ranks, one core. Prints JSON lines.

    PYTHONPATH=operator:tests python trainer/benchmarks/planner_scale.py [--features 250 --ranks 8] [--kernels 18]

A feature stands for four ops, as in plans 0 to 4.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from planner.random_tasks import random_profile, random_task
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of
from rap_planner.search import Planner


def main() -> None:
    """One search with table owners, one with launches in parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=250)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--kernels", type=int, default=18)
    options = parser.parse_args()
    profile = random_profile(1)
    task = random_task(1, items=options.features, kernels=options.kernels, ranks=options.ranks)
    for name, enumerator in (("owners", Enumerator()), ("parts", Enumerator(table_owner=False, splits=True))):
        began_s = time.process_time()
        plan = plan_of(Planner(enumerator=enumerator).search(task, profile), profile)
        took_s = time.process_time() - began_s
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = {"case": name, "features": options.features, "ranks": options.ranks, "kernels": options.kernels}
        print(
            json.dumps({**result, "cpu_s": round(took_s, 3), "peak_mb": round(peak_mb), "plan": plan.hash}), flush=True
        )


if __name__ == "__main__":
    main()
