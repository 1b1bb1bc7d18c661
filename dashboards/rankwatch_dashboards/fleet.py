"""The board of all runs: do they succeed, what is lost and spent, and which nodes fail again and again."""

from __future__ import annotations

from functools import partial

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import FLEET_UID, HARDWARE_ALERTS, ON_CALL_UID, Alert, RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS
from rankwatch_dashboards.alert_table import READS
from rankwatch_dashboards.board import FirstScreen, Row, Rows, any_cluster, board
from rankwatch_dashboards.firing import named, selected
from rankwatch_dashboards.links import TO_CHECKPOINTS, TO_NODE, TO_RUN, opens
from rankwatch_dashboards.lost_time import LOST_SHARE, lost_time, unproductive
from rankwatch_dashboards.panels import (
    CLUSTER,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Drawing,
    Panel,
    Query,
    Steps,
    most,
    verdict,
)

_ON_CALL = opens(ON_CALL_UID, "What is wrong now")
_LOST = unproductive(CLUSTER)
_NO_ENDS = "no attempt has ended since the rules were loaded."
_NO_TIME = "no run was seen for the window of goodput."
_NO_PRICE = "no price is set: see the table of prices in docs/cost.md."
_OFFENCES = named((*HARDWARE_ALERTS, Alert.NODE_LOST, Alert.RUN_SLOW, Alert.RUN_STALLED))


def fleet(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the board."""
    return board(
        "Rankwatch / Fleet",
        FLEET_UID,
        "All runs: success, goodput and what takes it, spend and waste, time to complete, nodes that fail.",
        variables=(any_cluster("label_values(rankwatch_agent_info, cluster)"),),
        events=CLUSTER,
        screen=FirstScreen(
            verdicts=_verdicts(config),
            main=_runs(config),
            views=(lost_time(config, _ON_CALL, LOST_SHARE, _NO_TIME), _offenders(config), _BUDGETS),
        ),
        rows=_ROWS,
        config=config,
    )


def _at_least(objective: float) -> Steps:
    return (-1e9, RED), (objective, GREEN)


def _of(series: str, more: str = "") -> str:
    return f"{series}{{{CLUSTER}{more}}}"


_number = partial(verdict, links=(_ON_CALL,))


def _lowest(title: str, description: str, series: str, objective: float, no_data: str) -> Panel:
    return _number(
        title,
        description,
        f"bottomk(1, {_of(series)})",
        beside="{{run_class}}",
        unit="percentunit",
        steps=_at_least(objective),
        no_data=no_data,
    )


def _per_hour(title: str, description: str, series: str, steps: Steps = ()) -> Panel:
    expression = f"sum by (currency) ({series})"
    return _number(
        title, description, expression, decimals=2, beside="{{currency}}", steps=steps, no_data=_NO_PRICE
    )


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    return (
        _lowest(
            "Success, 28 days",
            "Share of attempts that ended well over the period of budgets, of the class of runs that is "
            "lowest. 100 %: none failed. Red: below the objective of classes that name none.",
            "class:rankwatch_run_success_of_period:ratio",
            config.success_objectives[DEFAULT_CLASS],
            _NO_ENDS,
        ),
        _lowest(
            "Goodput, 28 days",
            "Share of the requested time of ranks that made progress that lasts, of the class of runs that "
            "is lowest: one sum over another. 100 %: all of it. Red: below the objective.",
            "class:rankwatch_goodput_of_period:ratio",
            config.goodput_objectives[DEFAULT_CLASS],
            _NO_TIME,
        ),
        _number(
            "Runs now",
            "Runs with ranks that start or run. The table below has them.",
            f"count({_of('run:rankwatch_ranks_running:sum')} > 0)",
            no_data="no run is running, or no agent is scraped.",
        ),
        _number(
            "Rank-hours lost, last hour",
            "Time of the ranks of all runs that made no progress in the last hour. What it was lost to "
            "stands below.",
            f"sum(run_state:rankwatch_goodput_rank_hours:sum{{{_LOST}}})",
            unit="h",
            steps=((1, ORANGE),),
            decimals=1,
            no_data=_NO_TIME,
        ),
        _per_hour(
            "Spend per hour",
            "What all runs are charged in an hour now, by currency.",
            _of("run:rankwatch_cost_per_hour:sum"),
        ),
        _per_hour(
            "Waste per hour",
            "The part of it that buys no progress: stalls, restarts, checkpoints, stragglers, waiting for "
            "data. By currency.",
            f"run_state:rankwatch_cost_per_hour:sum{{{_LOST}}}",
            steps=((0.01, ORANGE),),
        ),
    )


def _runs(config: RuleConfig) -> Panel:
    figures = (
        most(f"max by (cluster, run) ({_of('run:rankwatch_ranks_running:sum')})", 50),
        f"min by (cluster, run) ({_of('run:rankwatch_goodput_ettr:ratio')})",
        f"max by (cluster, run) ({_of('run:rankwatch_time_to_complete_seconds:estimate')})",
        f"min by (cluster, run) ({_of('run:rankwatch_deadline_margin_seconds:estimate')})",
        f"sum by (cluster, run, currency) ({_of('run:rankwatch_cost_per_hour:sum')})",
        f"sum by (cluster, run, currency) ({_of('run:rankwatch_spent:sum')})",
        f"max by (cluster, run) ({_of('run:rankwatch_budget_forecast:ratio')})",
        f"max by (cluster, run) ({_of('rankwatch_run_restarts')})",
    )
    return Panel(
        title="Runs",
        description="The 50 runs with the most ranks now. Red goodput misses the objective; a margin below "
        "zero ends after the deadline (RankwatchRunLate: behind_plan); a forecast above 100 % passes the "
        "budget (RankwatchOverBudget). A click opens the run.",
        no_data="no run was seen for the window of goodput.",
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("-A",),
        queries=tuple(Query(expression=each, legend="{{run}}") for each in figures),
        columns=(
            Column(name="run", title="Run", link=TO_RUN),
            Column(name="A", title="Ranks now", width=95, decimals=0),
            Column(
                name="B",
                title="Goodput, last hour",
                unit="percentunit",
                steps=_at_least(config.goodput_objectives[DEFAULT_CLASS]),
                link=TO_CHECKPOINTS,
            ),
            Column(name="C", title="Time left", unit="s"),
            Column(name="D", title="Ahead of deadline", unit="s", steps=((-1e15, RED), (0, GREEN))),
            Column(name="E", title="Cost per hour", width=115, decimals=2),
            Column(name="F", title="Spent", width=90, decimals=2),
            Column(name="currency", title="In", width=50),
            Column(
                name="G", title="Forecast, of budget", unit="percentunit", steps=((0.9, YELLOW), (1, RED))
            ),
            Column(name="H", title="Restarts", width=80, decimals=0),
        ),
    )


def _offenders(config: RuleConfig) -> Panel:
    alerts = selected(f'node!="", {_OFFENCES}, {CLUSTER}')
    hours = f"{config.scrape_interval_seconds:g} / 3600"
    return Panel(
        title="Nodes that fail again",
        description="Nodes with the most hours of alerts on hardware, stalls and stragglers in the time "
        "shown; choose a month. Few nodes cause most exclusions: take them out and test them. " + READS,
        no_data="no node was named by an alert in the time shown, or alerts are no series here.",
        unit="short",
        drawing=Drawing.TABLE,
        empty_when_healthy=True,
        empty_text="No alert series of a node.",
        sorted_by=("-A",),
        queries=(
            Query(
                expression=most(f"sum by (cluster, node) (count_over_time({alerts}[$__range])) * {hours}"),
                legend="{{node}}",
            ),
            Query(
                expression=most(
                    "count by (cluster, node) (count by (cluster, node, alertname, run) "
                    f"(count_over_time({alerts}[$__range])))"
                ),
                legend="{{node}}",
            ),
        ),
        columns=(
            Column(name="node", title="Node", link=TO_NODE),
            Column(name="A", title="Hours of alerts", unit="h"),
            Column(name="B", title="Alerts and runs", decimals=0),
        ),
    )


def _of_class(series: str) -> Query:
    return Query(expression=f"max by (cluster, run_class) ({_of(series)})", legend="{{run_class}}")


_BUDGETS = Panel(
    title="Budgets by class of runs",
    description="Goodput and success over 28 days with their objectives, and the share of the budget of lost "
    "time that is left. Below zero: RankwatchGoodputBudget. A run is given its class by RANKWATCH_RUN_CLASS.",
    no_data=_NO_TIME,
    unit="short",
    drawing=Drawing.TABLE,
    sorted_by=("C",),
    queries=(
        _of_class("class:rankwatch_goodput_of_period:ratio"),
        _of_class("class:rankwatch_goodput_objective:ratio"),
        _of_class("class:rankwatch_goodput_budget_left:ratio"),
        _of_class("class:rankwatch_run_success_of_period:ratio"),
        _of_class("class:rankwatch_run_success_objective:ratio"),
    ),
    columns=(
        Column(name="run_class", title="Class", width=100),
        Column(name="A", title="Goodput", unit="percentunit", width=76),
        Column(name="B", title="Goal", unit="percentunit", width=58),
        Column(
            name="C",
            title="Left",
            unit="percentunit",
            width=70,
            steps=((-1e9, RED), (0, YELLOW), (0.25, GREEN)),
        ),
        Column(name="D", title="Success", unit="percentunit", width=76),
        Column(name="E", title="Goal", unit="percentunit", width=58),
    ),
)


def _lines(title: str, description: str, unit: str, expression: str, legend: str) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        span=12,
        queries=(Query(expression=expression, legend=legend),),
    )


_SUCCESS = (
    _lines(
        "Success by class",
        "Attempts that ended well among those that ended well, failed or lost a node, over a week. Below the "
        "objective: RankwatchSuccessBudget.",
        "percentunit",
        _of("class:rankwatch_run_success:ratio"),
        "{{run_class}}",
    ),
    _lines(
        "Different runs that failed",
        "Runs that failed within the window of pages on success. As many as chance does not explain: "
        "RankwatchSuccessBudget pages.",
        "short",
        _of("class:rankwatch_runs_failed:count"),
        "{{run_class}}",
    ),
)
_TIME = (
    _lines(
        "Goodput by run",
        "Productive time over requested time in the last hour, the 20 lowest. One that stays low has its "
        "causes on its board of checkpoints and goodput.",
        "percentunit",
        f"bottomk(20, {_of('run:rankwatch_goodput_ettr:ratio')})",
        "{{run}}",
    ),
    _lines(
        "Time left by run",
        "Until the target steps are reached, at the pace of the last hours. A line that does not fall is a "
        "run that stands still.",
        "s",
        most(_of("run:rankwatch_time_to_complete_seconds:estimate")),
        "{{run}}",
    ),
)
_MONEY = (
    _lines(
        "Cost per hour by run",
        "What each run is charged in an hour, the 20 most expensive.",
        "short",
        most(_of("run:rankwatch_cost_per_hour:sum")),
        "{{run}} {{currency}}",
    ),
    _lines(
        "Cost per hour by state",
        "What the money of all runs buys. Everything but productive and communication is waste.",
        "short",
        f"sum by (state, currency) ({_of('run_state:rankwatch_cost_per_hour:sum')})",
        "{{state}} {{currency}}",
    ),
)

_ROWS: Rows = (
    Row("Do runs succeed?", lambda _: _SUCCESS, _NO_ENDS),
    Row("Do they make progress?", lambda _: _TIME, _NO_TIME),
    Row("What do they cost?", lambda _: _MONEY, _NO_PRICE),
)
