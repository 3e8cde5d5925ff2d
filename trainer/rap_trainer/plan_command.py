"""`rap plan`: its options, and the plan as a table, as JSON, or as what differs from another plan."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rap_contract.job import RAPJob
from rap_contract.plan import Plan
from rap_contract.pod import ExitCode
from rap_contract.problem import InvalidDocument, Problem
from rap_planner.enumerate import Enumerator
from rap_planner.explain import plan_of, sensitivity
from rap_planner.search import Planner
from rap_planner.task import Task

from rap_trainer.jobfile import load_job
from rap_trainer.plan.measured import measured_parts
from rap_trainer.plan.page import page
from rap_trainer.plan.timeline import timelines
from rap_trainer.plan_inputs import group_name, read_owners, read_plan, read_profile, read_text, task_for, workload_of

MS, US = 1e3, 1e6  # in a second
MAX_REJECTED = 8  # printed; the JSON has all
MAX_GROUPS = 40  # printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `rap plan`."""
    add = parser.add_argument
    add("job", type=Path, metavar="JOB.yaml")
    add("--profile", type=Path, metavar="P", help="what `rap profile` measured; default: an H200, only indicative")
    add("--workload", type=Path, metavar="W", help="JSON of list lengths and null shares by feature group")
    add("--mean-length", type=_positive, default=1.0, metavar="L", help="mean list length without --workload")
    add(
        "--table-owner",
        action="store_true",
        help="consider preprocessing at tables' owners also for a runtime that cannot",
    )
    add("--budget", type=_positive, default=10.0, metavar="S", help="stop searching after so many seconds")
    add("--owners", type=Path, metavar="S", help="JSON of {table: rank}: TorchRec's sharding; default: dealt by size")
    add("--html", type=Path, metavar="H", help="also write the plan as a page with a timeline")
    add("--measured", type=Path, metavar="R", help="history.jsonl of a run, drawn below the prediction in the page")
    add("--json", action="store_true", help="the plan as JSON")
    add(
        "--diff",
        type=Path,
        metavar="PLAN",
        nargs="+",
        help="what differs from another plan; of two plans, what differs between them, without a search",
    )


def run(arguments: argparse.Namespace) -> int:
    """Plans and prints; returns an exit code. Raises InvalidDocument for a bad job, profile, workload or old plan."""
    job = load_job(arguments.job)
    old, new = _to_compare(arguments.diff)
    if old is not None and new is not None:
        print("\n".join(diff(old, new)))
        return ExitCode.DONE
    if arguments.measured is not None and arguments.html is None:
        hint = "give --html too: the parts of a run are drawn in the page"
        raise InvalidDocument([Problem(path=("--measured",), message="nothing to draw it in", hint=hint)])
    profile = read_profile(arguments.profile, job)
    text = None if arguments.workload is None else read_text(arguments.workload)
    workload = workload_of(job, text, mean_length=arguments.mean_length)
    task = task_for(job, profile, workload=workload, owners=read_owners(arguments.owners, job))
    planner = Planner(enumerator=Enumerator(table_owner=True) if arguments.table_owner else Enumerator.of(profile))
    end = time.monotonic() + arguments.budget
    result = planner.search(task, profile, deadline=lambda: time.monotonic() >= end)
    changes = sensitivity(planner, task, profile, of=result) if result.complete else ()
    plan = plan_of(result, profile, indicative=profile.model_hash is None, sensitivity=changes)
    if arguments.html is not None:
        measured = None if arguments.measured is None else measured_parts(read_text(arguments.measured))
        drawn = timelines(plan, profile, result.estimator, measured)
        _write(arguments.html, page(plan, task, drawn, source=f"{profile.device.name}, {profile.date}"))
    if arguments.json:
        print(plan.to_json())
    elif old is not None:
        print("\n".join(diff(old, plan)))
    else:
        print("\n".join(table(job, task, plan, source=f"{profile.device.name}, {profile.date}")))
    return ExitCode.DONE


def _to_compare(paths: Sequence[Path] | None) -> tuple[Plan | None, Plan | None]:
    """The plans of --diff. Raises InvalidDocument."""
    if not paths:
        return None, None
    if len(paths) > 2:
        hint = "give the old plan, or the old one and the new one"
        raise InvalidDocument(
            [Problem(path=("--diff",), message=f"compares two plans, {len(paths)} were given", hint=hint)]
        )
    old, *rest = [read_plan(path) for path in paths]
    return old, rest[0] if rest else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        hint = "give a path in a folder that exists and may be written"
        raise InvalidDocument([Problem(path=(), message=f"{path}: {error.strerror}", hint=hint)]) from None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be above 0 and below 1000000")
    return value


def table(job: RAPJob, task: Task, plan: Plan, *, source: str) -> Iterator[str]:
    """The lines of a plan for people."""
    prediction = plan.prediction
    step = prediction.step_seconds
    yield f"plan {plan.hash} of {plan.job}: {plan.num_ranks} rank(s), {len(plan.kernels)} fused kernel(s) ({source})"
    if prediction.indicative:
        yield "indicative: the profile is of another model or machine, its step and windows too; `rap profile` makes one of yours"
    yield ""
    heads = ("feature group", "features", "chain", "where", "when", "ms alone", "why here")
    yield from _columns([heads, *_groups(job, task, plan)])
    yield ""
    yield from _columns([("kernel", "features", "when", "alone us", "adds us", "why here"), *_kernels(plan)])
    yield ""
    error = prediction.error_seconds * MS
    yield f"predicted step {step * MS:.3f} ms +- {error:.3f}; inline {prediction.inline_seconds * MS:.3f}"
    gap = step / prediction.bound_seconds - 1 if prediction.bound_seconds else 0.0
    yield f"no plan can be below {prediction.bound_seconds * MS:.3f} ms (gap {100 * gap:.2f} %)"
    yield from (f"  {part.seconds * US:10.1f} us  {part.name}" for part in prediction.parts)
    yield "rejected, and by how much:"
    yield from (f"  {r.more_seconds * US:+10.1f} us  {r.what}" for r in prediction.rejected[:MAX_REJECTED])
    if prediction.sensitivity:
        yield "what would change the plan:"
        yield from (f"  {line}" for line in prediction.sensitivity)


def _groups(job: RAPJob, task: Task, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Features of one chain, one place and the same kernels as one row; the costliest first."""
    rows: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for index, item in enumerate(task.items):
        rank = plan.mapping[item.name]
        kernels = tuple(sorted({piece.kernel for piece in item.pieces}))
        rows.setdefault((item.chain, "own rows" if rank is None else f"owner, rank {rank}", kernels), []).append(index)
    shares = _shares(task, plan)
    ordered = sorted(rows.items(), key=lambda row: -sum(shares[n] for n in row[1]))
    for (chain, where, kernels), indices in ordered[:MAX_GROUPS]:
        names = list(dict.fromkeys(group_name(job, task.items[n].group) for n in indices))
        name = names[0] if len(names) == 1 else f"{names[0]} + {len(names) - 1} more"
        when = ", ".join(dict.fromkeys(plan.schedule[kernel].window for kernel in kernels))
        milliseconds = sum(shares[n] for n in indices) * MS
        main = max(kernels, key=lambda kernel: plan.prediction.kernels[kernel].solo_seconds, default=None)
        why = "no work" if main is None else f"kernel {main}: {plan.prediction.kernels[main].reason}"
        yield name, str(len(indices)), chain, where, when, f"{milliseconds:.4f}", why
    if len(ordered) > MAX_GROUPS:
        yield f"... {len(ordered) - MAX_GROUPS} more, cheaper ones", "", "", "", "", "", ""


def _shares(task: Task, plan: Plan) -> list[float]:
    """Seconds of each feature: its part, by bytes, of the time its kernels take alone."""
    totals = [0.0] * len(plan.kernels)
    for item in task.items:
        for piece in item.pieces:
            totals[piece.kernel] += piece.num_bytes
    costs = plan.prediction.kernels
    return [
        sum(p.num_bytes / totals[p.kernel] * costs[p.kernel].solo_seconds for p in item.pieces if totals[p.kernel])
        for item in task.items
    ]


def _kernels(plan: Plan) -> Iterator[tuple[str, ...]]:
    for kernel, placed, cost in zip(plan.kernels, plan.schedule, plan.prediction.kernels, strict=True):
        grid = "" if placed.programs is None else f", {placed.programs} programs"
        yield (
            f"{kernel.launch} {kernel.stage}",
            str(len(kernel.features)),
            f"{placed.window}{grid}",
            f"{cost.solo_seconds * US:.1f}",
            f"{cost.added_seconds * US:.1f}",
            cost.reason,
        )


def diff(old: Plan, new: Plan) -> Iterator[str]:
    """What changed between two plans, one line a change."""
    if old.hash == new.hash:
        yield f"the same plan, {new.hash}"
        return
    yield f"{old.hash} -> {new.hash}"
    before, after = old.prediction.step_seconds, new.prediction.step_seconds
    yield f"predicted step {before * MS:.3f} -> {after * MS:.3f} ms ({(after - before) * US:+.1f} us)"
    moved = [
        f"feature {name}: {was} -> {now}"
        for name in dict.fromkeys((*old.mapping, *new.mapping))
        for was, now in ((_where(old, name), _where(new, name)),)
        if was != now
    ]
    yield from moved[:MAX_GROUPS]
    if len(moved) > MAX_GROUPS:
        yield f"... {len(moved) - MAX_GROUPS} more features"
    if [kernel.features for kernel in old.kernels] != [kernel.features for kernel in new.kernels]:
        yield f"fused kernels: {len(old.kernels)} -> {len(new.kernels)}, not the same features in each"
        return
    for kernel, was_at, is_at in zip(new.kernels, old.schedule, new.schedule, strict=True):
        if was_at != is_at:
            yield (
                f"kernel {kernel.launch} {kernel.stage}: {was_at.window} ({was_at.programs or 'full grid'}) -> "
                f"{is_at.window} ({is_at.programs or 'full grid'})"
            )


def _where(plan: Plan, name: str) -> str:
    if name not in plan.mapping:
        return "absent"
    rank = plan.mapping[name]
    return "own rows" if rank is None else f"rank {rank}"


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
