"""The dashboards that the chart ships: what a sidecar needs, and what keeps them true."""

from __future__ import annotations

import json
import re

import pytest
from boards.__main__ import BOARDS, FOLDER
from boards.draw import Line, as_svg
from boards.grafana import as_json
from boards.panels import Board, Form, events, gauge, quantile, rate
from rap_contract import metrics

NAMES = {metric.name for metric in (*metrics.TRAINER, *metrics.OPERATOR)}
BY_NAME = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


@BY_NAME
def test_the_chart_ships_what_the_code_makes(board: Board) -> None:
    made = (FOLDER / f"{board.uid}.json").read_text()
    assert made == as_json(board), "run: PYTHONPATH=operator:charts python -m boards"


@BY_NAME
def test_a_sidecar_can_load_a_board(board: Board) -> None:
    document = json.loads(as_json(board))
    assert "__inputs" not in document
    assert "__requires" not in document
    assert document["templating"]["list"][0]["type"] == "datasource"
    assert document["uid"] == board.uid
    for panel in document["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["description"]


@BY_NAME
def test_panels_do_not_overlap_and_fill_their_rows(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(as_json(board))["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@BY_NAME
def test_a_panel_whose_values_have_no_end_is_not_drawn_as_one_without_data(board: Board) -> None:
    def drawn(value: float | None) -> str:
        line = Line("a", () if value is None else ((0.0, value), (1.0, value)))
        panels = [(row.title, panel) for row in board.rows for panel in row.panels if panel.form is not Form.BARS]
        return as_svg(board, {(row, panel.title): [line] for row, panel in panels})

    assert "∞ all the time" in drawn(float("inf"))
    assert "no data" not in drawn(float("inf"))
    assert "no data" not in drawn(1.0)
    assert "no data" in drawn(None)


@BY_NAME
def test_queries_name_declared_metrics_only(board: Board) -> None:
    for panel in board.panels:
        for query in panel.queries:
            asked = {name.removesuffix("_bucket") for name in re.findall(r"\brap_\w+", query.expr)}
            assert asked, panel.title
            assert asked <= NAMES, panel.title


@BY_NAME
def test_several_series_of_a_panel_can_be_told_apart(board: Board) -> None:
    for panel in board.panels:
        if panel.form is not Form.STAT:
            legends = [query.legend for query in panel.queries]
            assert all(legends), panel.title
            assert len(set(legends)) == len(legends), panel.title


def test_boards_lead_to_each_other() -> None:
    known = {board.uid for board in BOARDS}
    assert {uid for board in BOARDS for _, uid in board.links} == known


def test_a_query_of_a_label_that_a_metric_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="rap_steps_total has no label reason"):
        rate(metrics.STEPS, "", ("reason",))
    with pytest.raises(ValueError, match="rap_step is a gauge"):
        rate(metrics.STEP, "")
    with pytest.raises(ValueError, match="no label part"):
        gauge(metrics.STEP, "", ("part",))
    with pytest.raises(ValueError, match="no label part"):
        events(metrics.STEPS, "", ("part",))
    with pytest.raises(ValueError, match="no label part"):
        quantile(0.5, metrics.STEP_SECONDS, "", ("part",))
