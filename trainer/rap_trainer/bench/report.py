"""Turns the bench's JSON lines into a Markdown table: one row a case, share of the ideal and exposed time beside it.

python -m rap_trainer.bench.report results.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]
HEAD = ("case", "ms", "spread", "samples/s", "of ideal", "exposed ms", "busy ms", "host ms", "GB", "uJ/sample")


def table(results: Iterable[Result]) -> str:
    """One table for each plan, batch size and number of GPUs. The ideal is the fastest `captured` case of the same group."""
    groups: dict[tuple[int, int, int], list[Result]] = {}
    for result in results:
        if "ms" in result:
            groups.setdefault((result["plan"], result["batch"], result["gpus"]), []).append(result)
    return "\n\n".join(_group(key, groups[key]) for key in sorted(groups))


def _group(key: tuple[int, int, int], results: Sequence[Result]) -> str:
    plan, batch, gpus = key
    ideal = min((r["ms"] for r in results if r["case"].startswith("captured:")), default=None)
    rows = [_cells(result, ideal, batch) for result in results]
    lines = [f"Plan {plan}, batch {batch} a GPU, {gpus} GPU{'s' if gpus > 1 else ''}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (HEAD, ["---"] * len(HEAD), *rows)]
    return "\n".join(lines)


def _cells(result: Result, ideal: float | None, batch: int) -> list[str]:
    ms = result["ms"]
    joules = result.get("joules")
    return [
        result["case"],
        f"{ms:.3f}",
        f"{result['low_ms']:.3f}-{result['high_ms']:.3f}",
        f"{batch * result['gpus'] / ms * 1e3:,.0f}",
        "" if ideal is None else f"{ideal / ms:.1%}",
        f"{ms - ideal:.3f}" if ideal is not None and result["case"].startswith("rap:") else "",
        _number(result.get("busy_ms")),
        _number(result.get("host_ms")),
        _number(result.get("memory_gb")),
        f"{joules / batch * 1e6:.1f}" if joules else "",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main(paths: Sequence[str]) -> int:
    """Prints the tables of all files together."""
    lines = [line for path in paths for line in Path(path).read_text().splitlines() if line.startswith("{")]
    sys.stdout.write(table(json.loads(line) for line in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
