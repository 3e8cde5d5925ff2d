"""A plan as one HTML file that needs nothing else: timeline of the step, kernels, features, what was rejected.

Features of one chain, place and set of kernels are one row, so that three thousand ops stay readable; a filter finds any by
name. Not here: what a plan is, or how it was found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rap_contract.plan import Plan
from rap_planner.task import Task

from rap_trainer.plan.timeline import Bar, RankTimeline

US, MS = 1e6, 1e3  # in a second
WIDTH = 1000.0  # units of the drawing
LANE_HEIGHT, GAP = 22, 6
NARROW = 46.0  # a bar narrower than this carries no text

STYLE = """
:root{color-scheme:light dark;--ink:#1c2733;--soft:#5b6b7b;--line:#c9d3dc;--training:#9fb4c7;--exchange:#d6a75c;
--preprocessing:#4f9d76;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa7b4;--line:#38444f;--training:#4d6378;
--exchange:#9a7232;--preprocessing:#3d8a63;--page:#10161c}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--page);margin:2rem auto;max-width:72rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}p,td,th{font-variant-numeric:tabular-nums}
.soft{color:var(--soft)}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;padding:.5rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;
border-bottom:1px solid var(--line)}td.n,th.n{text-align:right}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}.training{fill:var(--training)}.exchange{fill:var(--exchange)}
.preprocessing{fill:var(--preprocessing)}input{font:inherit;padding:.2rem .5rem;width:20rem;max-width:100%}
"""
SCRIPT = """
const zoom=document.getElementById('zoom'),find=document.getElementById('find');
zoom.oninput=()=>document.querySelectorAll('svg').forEach(s=>s.style.width=(100*zoom.value)+'%');
find.oninput=()=>{const q=find.value.toLowerCase();
document.querySelectorAll('#features tbody tr').forEach(r=>r.hidden=!r.dataset.names.toLowerCase().includes(q));};
"""


def page(plan: Plan, task: Task, timelines: Sequence[RankTimeline], *, source: str) -> str:
    """The page; `source` says what the plan was made from."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>plan of {escape(plan.job)}</title><style>{STYLE}</style>",
        *_head(plan, source),
        "<h2>The step</h2><p class=soft>Windows are as long as without preprocessing, kernels as long as alone: what a kernel adds to",
        "the step is in the table. Zoom <input id=zoom type=range min=1 max=20 step=0.5 value=1></p>",
        *(_drawing(timeline) for timeline in timelines),
        *_kernels(plan),
        *_features(plan, task),
        *_alternatives(plan),
        f"<script>{SCRIPT}</script></html>",
    ]
    return "\n".join(parts)


def _head(plan: Plan, source: str) -> Iterator[str]:
    prediction = plan.prediction
    ops = sum(len(kernel.features) for kernel in plan.kernels)
    yield f"<h1>Plan {plan.hash} of {escape(plan.job)}</h1>"
    yield (
        f"<p>{plan.num_ranks} rank(s), {len(plan.kernels)} kernels over {len(plan.mapping)} features ({ops} places in "
        f"them). Predicted step <b>{prediction.step_seconds * MS:.3f} ms</b> &plusmn; {prediction.error_seconds * MS:.3f}, "
        f"inline {prediction.inline_seconds * MS:.3f}; no plan can be below {prediction.bound_seconds * MS:.3f}.</p>"
    )
    yield f"<p class=soft>{escape(source)}{'. Indicative: of another machine or model.' if prediction.indicative else ''}</p>"


def _drawing(timeline: RankTimeline) -> str:
    scale = WIDTH / max(timeline.seconds, 1e-12)
    rows, at = [], 0
    for lane in timeline.lanes:
        rows.append(f"<text x=0 y={at + 12}>{escape(lane.name)}</text>")
        rows += [_bar(bar, scale, at + 16) for bar in lane.bars]
        at += 16 + LANE_HEIGHT + GAP
    for tick in range(5):
        x = WIDTH * tick / 4
        anchor = "start" if tick == 0 else "end" if tick == 4 else "middle"
        label = f"{timeline.seconds * tick / 4 * US:.0f} us"
        rows.append(f"<text x={x:.1f} y={at + 12} text-anchor={anchor}>{label}</text>")
    return (
        f"<p>{escape(timeline.ranks)}</p><div class=scroll><svg viewBox='0 0 {WIDTH:.0f} {at + 16}' "
        f"preserveAspectRatio=none style='width:100%;height:{at + 16}px'>{''.join(rows)}</svg></div>"
    )


def _bar(bar: Bar, scale: float, top: int) -> str:
    x, width = bar.start * scale, max(bar.seconds * scale, 0.6)
    text = ""
    if width >= NARROW:
        text = f"<text x={x + 4:.2f} y={top + 15}>{escape(bar.name)}</text>"
    title = f"{escape(bar.title)} ({bar.seconds * US:.1f} us)"
    rectangle = f"<rect class={bar.kind} x={x:.2f} y={top} width={width:.2f} height={LANE_HEIGHT}>"
    return f"{rectangle}<title>{title}</title></rect>{text}"


def _kernels(plan: Plan) -> Iterator[str]:
    yield "<h2>Kernels</h2><table><thead><tr><th>kernel<th class=n>features<th>when<th class=n>alone us<th class=n>adds us"
    yield "<th>why here</thead><tbody>"
    for kernel, placed, cost in zip(plan.kernels, plan.schedule, plan.prediction.kernels, strict=True):
        grid = "" if placed.programs is None else f", {placed.programs} programs"
        yield (
            f"<tr><td>{kernel.launch} {kernel.stage}<td class=n>{len(kernel.features)}<td>{placed.window}{grid}"
            f"<td class=n>{cost.solo_seconds * US:.1f}<td class=n>{cost.added_seconds * US:.1f}<td>{escape(cost.reason)}"
        )
    yield "</tbody></table>"


def _features(plan: Plan, task: Task) -> Iterator[str]:
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for item in task.items:
        rank = plan.mapping[item.name]
        kernels = sorted({piece.kernel for piece in item.pieces})
        when = ", ".join(dict.fromkeys(plan.schedule[kernel].window for kernel in kernels))
        where = "own rows" if rank is None else f"owner, rank {rank}"
        shown = ", ".join(str(kernel) for kernel in kernels)
        rows.setdefault((item.chain, where, when, shown), []).append(item.name)
    yield "<h2>Features</h2><p><input id=find placeholder='find a feature'></p><table id=features>"
    yield "<thead><tr><th>chain<th class=n>features<th>where<th>when<th>kernels<th>names</thead><tbody>"
    for (chain, where, when, kernels_of), names in sorted(rows.items(), key=lambda row: (-len(row[1]), row[0])):
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        yield (
            f"<tr data-names='{escape(' '.join(names), quote=True)}'><td>{escape(chain)}<td class=n>{len(names)}"
            f"<td>{where}<td>{when}<td>{kernels_of}<td>{escape(some)}"
        )
    yield "</tbody></table>"


def _alternatives(plan: Plan) -> Iterator[str]:
    yield "<h2>Parts of the prediction</h2><table><tbody>"
    for part in plan.prediction.parts:
        yield f"<tr><td class=n>{part.seconds * US:.1f} us<td>{escape(part.name)}"
    yield "</tbody></table><h2>Rejected, and by how much</h2><table><tbody>"
    for rejected in plan.prediction.rejected:
        yield f"<tr><td class=n>{rejected.more_seconds * US:+.1f} us<td>{escape(rejected.what)}"
    yield "</tbody></table>"
    if plan.prediction.sensitivity:
        yield "<h2>What would change the plan</h2><ul>"
        yield from (f"<li>{escape(line)}" for line in plan.prediction.sensitivity)
        yield "</ul>"
