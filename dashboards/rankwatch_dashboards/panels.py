"""Panels as values, and what Grafana needs to draw them.

grafana-foundation-sdk draws no legend unless told to, gives queries no refId and no datasource, and
its builders are mutable; all of that is seen to here, in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from rankwatch_alerts import HARDWARE_UID

RUN = 'cluster=~"$cluster", run=~"$run"'
"""The chosen run."""
RANKS = f'{RUN}, rank=~"$rank"'
"""The chosen ranks of it."""
ON_ITS_NODES = f"and on (cluster, node) group by (cluster, node) (rankwatch_rank_info{{{RUN}}})"
"""Appended to a series of a machine: only the nodes that hold ranks of the run."""
NODE = 'cluster=~"$cluster", node=~"$node"'
"""The chosen nodes."""
GPU = f'{NODE}, gpu=~"$gpu"'
"""The chosen GPUs of them."""
MOST_SERIES = 20
"""Lines per panel; beyond it nothing can be read, and thousands of ranks would stop Grafana."""

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


class Drawing(StrEnum):
    """How a panel shows its series."""

    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    NAME = "name"
    """The name of each series without its value."""
    STATES = "states"
    """One coloured band per series: the only drawing that keeps hundreds of ranks readable."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One expression and the template of its series' names."""

    expression: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel; the description says what it means, what is bad, and where to go next."""

    title: str
    description: str
    unit: str
    """Grafana's unit id: s, bytes, Bps, percentunit, short, ..."""
    queries: tuple[Query, ...]
    drawing: Drawing = Drawing.LINES
    span: int = 8
    """Columns of 24."""
    height: int = 8
    threshold: float | None = None
    """Drawn as a red line; the alert of the same meaning uses the same number."""
    empty_when_healthy: bool = field(default=False)
    """True where no series is good news."""
    opens: tuple[str, ...] = ()
    """Labels of a series with which a click on it opens the dashboard of hardware: node, or node and gpu."""
    address: str = ""
    """Label of a series that holds the address which a click on it opens."""


def most(expression: str, series: int = MOST_SERIES) -> str:
    """The largest series of an expression at each instant."""
    return f"topk({series}, {expression})"


Builder = timeseries.Panel | stat.Panel | statetimeline.Panel


def build(panel: Panel) -> Builder:
    """A fresh builder of the panel with everything Grafana leaves out by default."""
    builder = _drawn(panel)
    builder.title(panel.title).description(panel.description).unit(panel.unit)
    builder.datasource(DATASOURCE).span(panel.span).height(panel.height).interval("15s")
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        builder.with_target(
            prometheus.Dataquery()
            .expr(query.expression)
            .legend_format(query.legend)
            .ref_id(letter)
            .datasource(DATASOURCE)
            .range()
        )
    if panel.empty_when_healthy:
        builder.no_value("none")
    if panel.opens:
        builder.data_links([_hardware_of(panel.opens)])
    if panel.address:
        # Raw: it is an address already, and Grafana would encode its percent signs again.
        link = dashboard.DashboardLink(panel.title).url(f"${{__field.labels.{panel.address}:raw}}")
        builder.data_links([link.target_blank(True)])
    return builder


def _hardware_of(labels: tuple[str, ...]) -> dashboard.DashboardLink:
    of = "&".join(f"var-{each}=${{__field.labels.{each}}}" for each in ("cluster", *labels))
    return dashboard.DashboardLink(f"Hardware of this {labels[-1]}").url(
        f"/d/{HARDWARE_UID}?{of}&${{__url_time_range}}"
    )


def _drawn(panel: Panel) -> Builder:
    match panel.drawing:
        case Drawing.NUMBER | Drawing.NAME:
            numbers = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
            return numbers.text_mode(BigValueTextMode.NAME) if panel.drawing is Drawing.NAME else numbers
        case Drawing.STATES:
            return statetimeline.Panel().merge_values(True)
    builder = timeseries.Panel().legend(_legend()).tooltip(_tooltip()).line_width(1)
    if panel.drawing is Drawing.STACKED:
        builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    if panel.threshold is not None:
        builder.thresholds(_thresholds(panel.threshold))
        builder.thresholds_style(common.GraphThresholdsStyleConfig().mode(_line()))
    return builder


def _line() -> common_models.GraphThresholdsStyleMode:
    return common_models.GraphThresholdsStyleMode.LINE


def _thresholds(value: float) -> dashboard.ThresholdsConfig:
    steps = [
        dashboard_models.Threshold(value=None, color="green"),
        dashboard_models.Threshold(value=value, color="red"),
    ]
    return dashboard.ThresholdsConfig().mode(dashboard_models.ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull"])
    )


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
