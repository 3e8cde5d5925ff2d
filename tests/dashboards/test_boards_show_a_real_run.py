"""Every query of every panel, asked of a real Prometheus that scraped a real run: none fails, none is empty."""

from __future__ import annotations

import pytest
from boards.__main__ import BOARDS
from boards.panels import Panel
from dashboards.prometheus_server import PrometheusServer
from dashboards.running_system import filled_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PANELS = [pytest.param(panel, id=f"{board.uid}: {panel.title}") for board in BOARDS for panel in board.panels]


@pytest.mark.parametrize("panel", PANELS)
def test_no_query_of_a_panel_is_empty(panel: Panel, scraped: PrometheusServer) -> None:
    for query in panel.queries:
        found = scraped.instant(filled_in(query.expr))
        assert found, f"{panel.title}: nothing for {query.expr}"
        assert any(series.points for series in found), f"{panel.title}: only NaN for {query.expr}"
