"""What the time of runs goes to instead of progress: one panel and one threshold for all boards."""

from __future__ import annotations

from rankwatch.conventions.states import GoodputState
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS
from rankwatch_dashboards.links import Link
from rankwatch_dashboards.panels import CLUSTER, RED, RUN, Drawing, Panel, Query, Steps
from rankwatch_dashboards.words import STATES

_LEAST = 0.001
"""Smallest share with a bar of its own."""
NO_TIME = "agents have not yet seen the run for the window of goodput."


def unproductive(matchers: str) -> str:
    """Matchers of time that made no progress."""
    return f'{matchers}, state!="{GoodputState.PRODUCTIVE}", state!="{GoodputState.COMMUNICATION}"'


LOST_SHARE = (
    f"sum by (state) (run_state:rankwatch_goodput_ranks:mean{{{unproductive(CLUSTER)}}}) "
    f"/ on () group_left () sum(run:rankwatch_goodput_requested_ranks:mean{{{CLUSTER}}})"
)
"""Of all runs, by state: sums over them, divided last."""


def too_much(config: RuleConfig) -> Steps:
    """Red where lost time alone misses the objective of goodput of classes that name none."""
    return ((1 - config.goodput_objectives[DEFAULT_CLASS], RED),)


def lost_time(config: RuleConfig, link: Link, share: str = "", no_data: str = NO_TIME) -> Panel:
    """Shares of the last hour by what took them, of the run that is chosen; `share` is that of other runs."""
    share = share or f"run_state:rankwatch_badput:share{{{unproductive(RUN)}}}"
    rest = f'label_replace(sum({share} <= {_LEAST}), "state", "all others", "", "")'
    return Panel(
        title="What lost time went to",
        description="Share of the last hour by what it was spent on, without productive time, the largest "
        "first: worth mending first. Waiting for slow ranks is what exceeds the transfer; red alone misses "
        "the objective of goodput. Steps after a NaN count as productive, although they are lost.",
        no_data=no_data,
        unit="percentunit",
        drawing=Drawing.BARS,
        least=0,
        steps=too_much(config),
        words=STATES,
        queries=(Query(expression=f"sort_desc({share} > {_LEAST} or {rest} > 0)", legend="{{state}}"),),
        links=(link,),
    )
