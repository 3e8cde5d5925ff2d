"""The bench as one picture: a row for each plan, batch size and number of GPUs, a dot for each case, milliseconds on a
logarithmic axis. A standalone SVG with its own colours, light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rap_trainer.bench.results import Group
from rap_trainer.display.axis import Axis

WIDTH, LEFT, RIGHT, TOP, ROW = 1000.0, 210.0, 30.0, 74.0, 30.0
"""Units of the picture, about pixels."""
SERIES = (
    ("sequential", "sequential", "#c8362e"),
    ("pipeline", "pipeline", "#e08a1e"),
    ("compile", "compile", "#9259c9"),
    ("cpu", "cpu", "#7a8b2a"),
    ("rap-eager", "rap, eager runtime", "#1fa2b8"),
    ("stock ideal", "stock TorchRec's ideal", "#98a1ae"),
    ("captured ideal", "our ideal", "#2a9d6f"),
    ("rap", "rap", "#2f6fde"),
)
"""(key, name, colour), drawn in this order: ours last, on top."""
STYLE = (
    "svg{background:#fff;font:12px system-ui,sans-serif;fill:#1c2330}.soft{fill:#5d6778}.level{stroke:#e3e6eb}"
    "@media(prefers-color-scheme:dark){svg{background:#12151b;fill:#e6eaf1}.soft{fill:#98a3b5}.level{stroke:#2c3340}}"
)


def dot_chart(groups: Sequence[Group]) -> str:
    """The picture of all groups with a figure."""
    rows = [(group.name, _values(group)) for group in groups if _values(group)]
    height = TOP + ROW * len(rows) + 40
    known = [ms for _, values in rows for ms in values.values()]
    low, high = (math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))) if known else (0, 1)
    axis = Axis(low=low, high=max(high, low + 1), start=LEFT, end=WIDTH - RIGHT)
    body = [*_legend(), *_grid(axis, TOP + ROW * len(rows))]
    for place, (name, values) in enumerate(rows):
        y = TOP + ROW * (place + 0.5)
        body.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        for key, label, color in SERIES:
            if key in values:
                x = axis.place(math.log10(values[key]))
                title = f"<title>{escape(label)}: {values[key]:.3f} ms</title>"
                body.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{color}" fill-opacity="0.85">{title}</circle>'
                )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img">'
    return f"{head}<title>Milliseconds a training step</title><style>{STYLE}</style>{''.join(body)}</svg>\n"


def _values(group: Group) -> dict[str, float]:
    found = {key: group.ms(key) for key, _, _ in SERIES[:5]}
    found |= {"stock ideal": group.stock_ideal_ms, "captured ideal": group.captured_ideal_ms}
    found["rap"] = group.ms(group.rap or "")
    return {key: ms for key, ms in found.items() if ms is not None}


def _legend() -> list[str]:
    parts = []
    for place, (_, name, color) in enumerate(SERIES):
        x, y = 20 + (place % 4) * 240, 18 + (place // 4) * 22
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="6" fill="{color}"/><text x="{x + 12}" y="{y + 4}">{escape(name)}</text>'
        )
    return parts


def _grid(axis: Axis, bottom: float) -> list[str]:
    parts = []
    for power in range(int(axis.low), int(axis.high) + 1):
        for digit in (1, 2, 5):
            value = digit * 10.0**power
            if math.log10(value) <= axis.high:
                x = axis.place(math.log10(value))
                parts.append(f'<line class="level" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom:.1f}"/>')
                parts.append(
                    f'<text class="soft" x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{value:g}</text>'
                )
    parts.append(f'<text class="soft" x="{LEFT - 12}" y="{bottom + 18:.1f}" text-anchor="end">ms a step</text>')
    return parts
