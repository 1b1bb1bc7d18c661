"""Panels as values: what a panel asks, says, and looks like, and where its links lead.

`drawing.py` turns them into Grafana's JSON. Links carry cluster, run, node and rank, and the time shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from rankwatch_alerts import CHECKPOINTS_GOODPUT_UID, HARDWARE_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_alerts.adjustments import links
from rankwatch_dashboards.words import Words


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where a click on a value leads."""

    title: str
    url: str
    """May name labels of the value as `{label}`; each is filled in where the value is drawn."""
    labels: tuple[str, ...] = ()
    """The labels that `url` names."""
    new_tab: bool = False

    def of_series(self) -> dashboard.DashboardLink:
        """Return the link for a panel that draws series: labels are those of the series."""
        return self._built("${{__field.labels.{}}}")

    def of_row(self) -> dashboard.DashboardLink:
        """Return the link for a table: labels are columns of the row."""
        return self._built("${{__data.fields.{}}}")

    def _built(self, place: str) -> dashboard.DashboardLink:
        url = self.url
        for label in self.labels:
            url = url.replace(f"{{{label}}}", place.format(label))
        return dashboard.DashboardLink(self.title).url(url).target_blank(self.new_tab)


def opens(uid: str, title: str, *labels: str) -> Link:
    """Return a board that opens on the values of these labels; without labels, on what this board shows.

    The cluster is the one that this board shows: not all series have that label.
    """
    chosen = "&".join(("${cluster:queryparam}", *(f"var-{each}={{{each}}}" for each in labels)))
    chosen = chosen if labels else "${__all_variables}"
    return Link(title=title, url=f"/d/{uid}?{chosen}&${{__url_time_range}}", labels=labels)


TO_RUN = opens(RUN_DEBUG_UID, "Debug this run", "run")
TO_RANK = opens(RUN_DEBUG_UID, "Debug this rank", "run", "rank")
TO_CHECKPOINTS = opens(CHECKPOINTS_GOODPUT_UID, "Checkpoints and goodput of this run", "run")
TO_NODE = opens(HARDWARE_UID, "Hardware of this node", "node")
TO_GPU = opens(HARDWARE_UID, "Hardware of this gpu", "node", "gpu")


TO_TRACKER = Link(title="Experiment tracker", url="${__field.labels.tracker_url:raw}", new_tab=True)


def to_runbook(config: RuleConfig) -> Link | None:
    """Return the page of the alert that a row names; None without `runbook_base_url`."""
    urls = links("{alertname}", runbooks=config.runbook_base_url)
    labels = ("alertname",)
    return Link(title="Runbook", url=urls["runbook_url"], labels=labels, new_tab=True) if urls else None


CLUSTER = 'cluster=~"$cluster"'
"""The chosen clusters."""
RUN = f'{CLUSTER}, run=~"$run"'
"""The chosen run."""
RANKS = f'{RUN}, rank=~"$rank"'
"""The chosen ranks of it."""
ON_ITS_NODES = f"and on (cluster, node) group by (cluster, node) (rankwatch_rank_info{{{RUN}}})"
"""Appended to a series of a machine: only the nodes that hold ranks of the run."""
NODE = f'{CLUSTER}, node=~"$node"'
"""The chosen nodes."""
GPU = f'{NODE}, gpu=~"$gpu"'
"""The chosen GPUs of them."""
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

GREEN, YELLOW, ORANGE, RED, PURPLE = "#009e73", "#f5ea61", "#d98200", "#c4162a", "#cc79a7"
"""Told apart with any colour vision, which Grafana's own are not. The state stands beside them as text."""


class Drawing(StrEnum):
    """How a panel shows its series."""

    LINES = "lines"
    STACKED = "stacked"
    NUMBER = "number"
    """The present value, large, on the colour of its threshold."""
    NAME = "name"
    """The name of each series without its value."""
    NAMED_NUMBER = "named number"
    """The present value with the name of its series, on the colour of its threshold."""
    STATES = "states"
    """One coloured band per series: the only drawing that keeps hundreds of ranks readable."""
    HISTORY = "history"
    """One coloured cell per series and moment; zero has none."""
    BARS = "bars"
    """One bar per series, with its present value."""
    TABLE = "table"
    """One row per series, with its present values. All queries have the same labels."""
    ALERT_LIST = "alert list"
    """List of what fires by the rules of Grafana and of all its data sources; asks no query."""
    ALERT_COUNT = "alert count"
    """How many of them."""


NOW = frozenset({Drawing.NUMBER, Drawing.NAME, Drawing.NAMED_NUMBER, Drawing.BARS, Drawing.TABLE})
"""Drawings of the present: their queries ask for one moment, so that what is over is not shown."""

Steps = tuple[tuple[float, str], ...]
"""Values from which a colour holds; below the first one it is green, in a history transparent."""
Mappings = tuple[tuple[str, str, str], ...]
"""A value, the text shown in its place (empty: the value), and its colour."""

SEVERITIES: Mappings = (("critical", "▲ page", RED), ("warning", "◆ ticket", ORANGE))


@dataclass(frozen=True, kw_only=True)
class Query:
    """One expression and the template of its series' names."""

    expression: str
    legend: str
    steps: Steps = ()
    """Colours of its values alone; its legend names no label then."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: a label of its queries, or the value of one of them."""

    name: str
    """A label, or the letter of a query: A is the first one."""
    title: str
    unit: str = "short"
    """Of a value; labels are text."""
    width: int = 0
    """Pixels; 0 shares what is left."""
    steps: Steps = ()
    mappings: Mappings = ()
    """Texts with a colour for the cell."""
    words: Words = field(default_factory=dict)
    """Texts alone."""
    patterns: Words = field(default_factory=dict)
    """Texts for what matches a regular expression between slashes; the first one counts."""
    decimals: int | None = None
    link: Link | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel; the description says what it means, what is bad, and where to go next."""

    title: str
    description: str
    unit: str
    """Grafana's unit id: s, bytes, Bps, percentunit, short, ..."""
    queries: tuple[Query, ...] = ()
    alerts: str = ""
    """Matchers of the alerts that a list of alerts shows."""
    no_data: str = ""
    """Meaning of a panel in which nothing is drawn; ends the description."""
    drawing: Drawing = Drawing.LINES
    span: int = 8
    """Columns of 24. A first screen sets it."""
    height: int = 8
    reads_all_ranks: bool = False
    """True where a query over time reads a series per rank or collector: it is asked for fewer moments."""
    threshold: float | None = None
    """Drawn as a red line; the alert of the same meaning uses the same number."""
    steps: Steps = ()
    """Colours of values, for drawings without a line."""
    mappings: Mappings = ()
    words: Words = field(default_factory=dict)
    """Names that series have in the place of their legends."""
    decimals: int | None = None
    least: float | None = None
    """Lowest end of the scale of bars."""
    columns: tuple[Column, ...] = ()
    """Of a table, from left to right; what is not named is not shown."""
    sorted_by: tuple[str, ...] = ()
    """Names of the columns that sort a table, with a minus in front for the largest first."""
    empty_when_healthy: bool = field(default=False)
    """True where no series is good news."""
    empty_text: str = ""
    """Shown where there is no series; "none" where that is good news."""
    links: tuple[Link, ...] = ()
    """Of each value. Links of a table are those of its columns."""


NONE: Mappings = (("0", "✓ none", GREEN),)
"""A count where none is good."""


OURS = 'product="rankwatch"'
"""Matcher of our alerts in lists of Grafana, which hold those of all teams."""
