"""Every query of every panel, asked of a real Prometheus that scraped a real run: none fails, none is empty."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from boards.__main__ import BOARDS
from boards.draw import Line, as_svg
from boards.panels import Board, Panel, Query
from dashboards.prometheus_server import PrometheusServer, Series
from dashboards.running_system import filled_in

DRAWN_S = 60
"""The last minute of the run is drawn."""
INTO = "RAP_DRAW_BOARDS_INTO"
"""A folder that keeps the drawings, for the docs (`make boards`)."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PANELS = [
    pytest.param(panel, id=f"{board.uid}: {panel.title}")
    for board in BOARDS
    for panel in board.panels
    if not panel.needs_gpu
]


@pytest.mark.parametrize("panel", PANELS)
def test_no_query_of_a_panel_is_empty(panel: Panel, scraped: PrometheusServer) -> None:
    for query in panel.queries:
        found = scraped.instant(filled_in(query.expr))
        assert found, f"{panel.title}: nothing for {query.expr}"
        assert any(series.points for series in found), f"{panel.title}: only NaN for {query.expr}"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_a_board_is_drawn_from_that_run(board: Board, scraped: PrometheusServer, tmp_path: Path) -> None:
    now_s = time.time()
    answers = {
        (row.title, panel.title): [
            line for query in panel.queries for line in _lines(scraped, query, start_s=now_s - DRAWN_S, end_s=now_s)
        ]
        for row in board.rows
        for panel in row.panels
    }
    svg = as_svg(board, answers)
    (tmp_path / "board.svg").write_text(svg)
    assert set(ElementTree.fromstring(svg).itertext()) >= {panel.title for panel in board.panels}
    assert "no data" not in svg
    if INTO in os.environ:
        (Path(os.environ[INTO]) / f"{board.uid}.svg").write_text(svg)


def _lines(server: PrometheusServer, query: Query, *, start_s: float, end_s: float) -> list[Line]:
    found = server.over(filled_in(query.expr), start_s=start_s, end_s=end_s, step_s=1)
    return [Line(_named(query.legend, series), series.points) for series in found]


def _named(legend: str, series: Series) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: series.labels.get(match[1], ""), legend)
