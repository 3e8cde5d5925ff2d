"""Boards as Grafana's JSON, through its own builders. Every panel asks the data source that the board's variable names."""

from __future__ import annotations

import json
from collections.abc import Callable

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models

from boards.panels import Board, Form, Panel, Query, Variable

_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_FROM = "now-3h"
_REFRESH = "30s"


def as_json(board: Board) -> str:
    """The dashboard as a sidecar loads it: one data source variable, no inputs, stable text."""
    text: str = JSONEncoder(sort_keys=True, indent=1).encode(_dashboard(board).build())
    return json.dumps(json.loads(text), sort_keys=True, indent=1) + "\n"


def _dashboard(board: Board) -> dashboard.Dashboard:
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["rap"])
        .time(_FROM, "now")
        .refresh(_REFRESH)
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        built = built.with_variable(_variable(variable))
    for title, uid in board.links:
        built = built.link(
            dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/{uid}").keep_time(True)
        )
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(_panel(panel))
    return built


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query(f"label_values({variable.metric}, {variable.source_label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


_Made = stat.Panel | bargauge.Panel | timeseries.Panel


def _panel(panel: Panel) -> _Made:
    forms: dict[Form, Callable[[], _Made]] = {
        Form.STAT: _stat,
        Form.BARS: _bars,
        Form.SERIES: _series,
        Form.STACKED: _stacked,
    }
    made = forms[panel.form]()
    made = made.title(panel.title).description(panel.about).datasource(_SOURCE).unit(panel.unit.value)
    made = made.span(panel.width).height(panel.height)
    if panel.thresholds:
        steps = [models.Threshold(value=step.value, color=step.color) for step in panel.thresholds]
        made = made.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    instant = panel.form is Form.BARS
    for place, query in enumerate(panel.queries):
        made = made.with_target(_target(query, chr(ord("A") + place), instant=instant))
    return made


def _stat() -> stat.Panel:
    return stat.Panel().color_mode(shapes.BigValueColorMode.VALUE).reduce_options(_latest())


def _bars() -> bargauge.Panel:
    return (
        bargauge.Panel()
        .orientation(shapes.VizOrientation.HORIZONTAL)
        .display_mode(shapes.BarGaugeDisplayMode.BASIC)
        .reduce_options(_latest())
        .min(0)
    )


def _series() -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.LIST).show_legend(True)
    legend = legend.placement(shapes.LegendPlacement.BOTTOM)
    return timeseries.Panel().fill_opacity(8).legend(legend)


def _stacked() -> timeseries.Panel:
    return _series().fill_opacity(35).stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))


def _latest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _target(query: Query, reference: str, *, instant: bool) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).ref_id(reference).legend_format(query.legend or "__auto")
    return made.instant() if instant else made.range()
