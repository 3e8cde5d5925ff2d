"""The bench's JSON lines as a page: figures against goals, the ablation, a table of all cases, a chart.

    python -m rap_trainer.bench.report RESULTS.jsonl... [--out docs/performance/bench.md]

Without --out the page goes to standard output; with it, `bench.svg` is written beside the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rap_trainer.bench.chart import dot_chart
from rap_trainer.bench.results import RUNGS, Group, Result, groups_of, least, mean, strong_scaling, weak_scaling

HEAD = (
    *("case", "ms", "spread", "steps", "samples/s", "of ideal", "over sequential", "exposed ms", "busy ms"),
    *("host ms", "GB", "uJ/sample", "loss gap"),
)


def page(lines: Sequence[Result], chart: str | None) -> str:
    """The whole page. Ratios are only taken within a group, whose cases ran one after the other in one run."""
    groups = groups_of(lines)
    parts = ["# The bench", _origin(lines), _goals(groups), _ablations(groups)]
    if chart is not None:
        parts.append(f"![Milliseconds a step by case]({chart})")
    parts += ["## All cases", COLUMNS, *(_group(group) for group in groups)]
    return "\n\n".join(part for part in parts if part) + "\n"


COLUMNS = (
    "A row is the median of the repeats; `spread` their extremes; `steps` of a repeat, fewer where a step is slow. `of ideal`: the "
    "step's runtime with inputs ready, over this case. `exposed`: what preprocessing adds to that. `busy`: time in which the GPU "
    "ran at least one kernel. `loss gap`: largest relative difference from the plain loop's losses in the first steps."
)


def table(results: Iterable[Result]) -> str:
    """One table for each plan, batch size and number of GPUs."""
    return "\n\n".join(_group(group) for group in groups_of(results))


def _origin(lines: Sequence[Result]) -> str:
    runs = [line for line in lines if line.get("case") == "run"]
    setup = next((line for line in lines if line.get("case") == "setup"), {})
    versions = ", ".join(f"{name} {setup[name]}" for name in ("torch", "torchrec", "fbgemm", "triton") if name in setup)
    device = setup.get("device", "an unknown device")
    parts = [f"Device: {device}; {versions}; tables capped at {setup.get('max_rows', '?')} rows."]
    if runs:
        commands = "\n".join(f"    {run['command']}" for run in runs)
        parts.append(f"{runs[0]['date']}, {runs[0]['cpus']} CPU cores; commands:\n\n{commands}")
    return " ".join(parts)


def _goals(groups: Sequence[Group]) -> str:
    narrow = [group for group in groups if group.plan < 4]
    over_sequential = [group.over("sequential", group.rap) for group in narrow]
    below = [_below_ideal(group) for group in groups]
    over_stock = _over_stock(groups, (0, 1))
    rows = [
        ("rap over sequential, mean of plans 0-3", "10x", _times(mean(over_sequential)) + _of(over_sequential)),
        ("rap over sequential, worst of plans 0-3", "5x", _times(least(over_sequential))),
        ("rap above its own ideal, plans 0-3, worst", "1 %", _percent(_most(below, groups, lambda g: g.plan < 4))),
        ("rap above its own ideal, plan 4, worst", "2 %", _percent(_most(below, groups, lambda g: g.plan == 4))),
        ("rap over stock TorchRec's ideal, mean of plans 0-1", "4x", _times(mean(over_stock)) + _of(over_stock)),
        ("rap over cpu, mean", "", _times(mean([group.over("cpu", group.rap) for group in groups]))),
        ("rap over compile, mean", "", _times(mean([group.over("compile", group.rap) for group in groups]))),
    ]
    for plan, batch in sorted({(group.plan, group.batch) for group in groups}):
        for gpus, kept in weak_scaling(groups, plan, batch).items():
            goal = {2: "92 %", 8: "90 %"}.get(gpus, "") if plan in (0, 4) else ""
            rows.append((f"1 -> {gpus} GPUs, weak scaling, plan {plan}, batch {batch}", goal, _percent(kept)))
    for plan, total in sorted({(group.plan, group.batch * group.gpus) for group in groups}):
        for gpus, kept in strong_scaling(groups, plan, total).items():
            rows.append((f"1 -> {gpus} GPUs, strong scaling, plan {plan}, {total} rows", "", _percent(kept)))
    return "## Against the goals\n\n" + _markdown(("what", "at least", "measured"), [row for row in rows if row[2]])


def _of(values: Sequence[float | None]) -> str:
    """How many groups a figure is of."""
    known = sum(value is not None for value in values)
    return f" ({known} of {len(values)} groups)" if known else ""


def _below_ideal(group: Group) -> float | None:
    ideal, ms = group.captured_ideal_ms, group.ms(group.rap or "")
    return None if ideal is None or ms is None else ms / ideal - 1


def _most(values: Sequence[float | None], groups: Sequence[Group], wanted: Callable[[Group], bool]) -> float | None:
    known = [v for v, group in zip(values, groups, strict=True) if v is not None and wanted(group)]
    return max(known, default=None)


def _over_stock(groups: Sequence[Group], plans: Sequence[int]) -> list[float | None]:
    found: list[float | None] = []
    for group in groups:
        ideal, ms = group.stock_ideal_ms, group.ms(group.rap or "")
        if group.plan in plans:
            found.append(None if ideal is None or ms is None else ideal / ms)
    return found


def _ablations(groups: Sequence[Group]) -> str:
    tables = [text for group in groups if (text := _ablation(group))]
    if not tables:
        return ""
    return "## Where the gain comes from\n\nEach rung with all before it; the first rungs with inputs ready.\n\n" + (
        "\n\n".join(tables)
    )


def _ablation(group: Group) -> str:
    rungs = [(text, group.ms(case)) for case, text in RUNGS]
    if group.ms("captured-modules") is None:
        return ""  # not the whole ladder
    rungs.append(("fused preprocessing inline", group.ms("rap:inline/0")))
    rungs.append(
        (f"in the best window and grid ({(group.rap or 'rap:').removeprefix('rap:')})", group.ms(group.rap or ""))
    )
    rows: list[tuple[str, str, str]] = []
    before: float | None = None
    for text, ms in rungs:
        if ms is None:
            continue
        rows.append((text, f"{ms:.3f}", "" if before is None else f"{before / ms:.2f}x"))
        before = ms
    return f"**{group.name}**\n\n" + _markdown(("rung", "ms", "gain"), rows)


def _group(group: Group) -> str:
    rows = [_cells(group, case) for case in group.cases]
    rows += [(case, "-", error[:160], *[""] * (len(HEAD) - 3)) for case, error in group.errors.items()]
    return f"### {group.name[0].upper()}{group.name[1:]}\n\n" + _markdown(HEAD, rows)


def _cells(group: Group, case: str) -> tuple[str, ...]:
    result = group.cases[case]
    ms, joules, ideal = float(result["ms"]), result.get("joules"), group.ideal_ms(case)
    return (
        f"**{case}**" if case == group.rap else case,
        f"{ms:.3f}",
        f"{result['low_ms']:.3f}-{result['high_ms']:.3f}",
        str(result.get("steps", "")),
        f"{group.batch * group.gpus / ms * 1e3:,.0f}",
        "" if ideal is None else f"{ideal / ms:.1%}",
        _times(group.over("sequential", case)),
        _number(group.exposed_ms(case)),
        _number(result.get("busy_ms")),
        _number(result.get("host_ms")),
        _number(result.get("memory_gb")),
        f"{joules / group.batch * 1e6:.1f}" if joules else "",
        _scientific(group.loss_gap(case)),
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *(tuple(cell.replace("|", "/") for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}x"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _scientific(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def main(arguments: Sequence[str]) -> int:
    """Makes the page of all files together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="files of JSON lines from `rap bench`")
    parser.add_argument("--out", type=Path, help="where to write the page, with a chart beside it")
    chosen = parser.parse_args(arguments)
    texts = [text for path in chosen.results for text in path.read_text().splitlines() if text.startswith("{")]
    lines: list[Result] = [json.loads(text) for text in texts]
    if chosen.out is None:
        sys.stdout.write(page(lines, None))
        return 0
    chart = chosen.out.with_suffix(".svg")
    chart.write_text(dot_chart(groups_of(lines)))
    chosen.out.write_text(page(lines, chart.name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
