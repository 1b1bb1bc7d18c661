"""The board of a person on call: what is wrong now, what it costs, and which work could be lost."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import AGENTS_UID, FLEET_UID, ON_CALL_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_alerts.rules import duration
from rankwatch_dashboards.alert_table import READS, firing_alerts
from rankwatch_dashboards.board import FirstScreen, Row, Rows, any_cluster, board
from rankwatch_dashboards.firing import count_of, firing
from rankwatch_dashboards.links import TO_CHECKPOINTS, TO_RUN, opens
from rankwatch_dashboards.lost_time import LOST_SHARE, NO_TIME, lost_time, too_much
from rankwatch_dashboards.panels import (
    CLUSTER,
    NONE,
    ORANGE,
    OURS,
    RED,
    YELLOW,
    Column,
    Drawing,
    Panel,
    Query,
    alert_count,
    most,
    verdict,
)
from rankwatch_dashboards.suspects import FAILED

_NEVER = 10**9
"""Age in seconds of a checkpoint that a run never saved: it comes first, and its cell says so."""
_AFTER_NAN = 2 * _NEVER
"""The same where the last good checkpoint is younger than the first loss that was not finite."""
_CLEAN_WITHIN = "6h"
_CHECKPOINT_STEP = "run:rankwatch_checkpoint_last_good_step:max"
_NO_AGENT = "no agent is scraped, and nothing is known of any run."


def on_call(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the board."""
    return board(
        "Rankwatch / On-call",
        ON_CALL_UID,
        "What is wrong now, what it costs, which work is at risk, and how the runs without an alert do.",
        variables=(any_cluster("label_values(rankwatch_agent_info, cluster)"),),
        events=CLUSTER,
        screen=FirstScreen(
            verdicts=_verdicts(config),
            main=firing_alerts(
                config,
                "What is wrong now, and the other runs",
                CLUSTER,
                no_data="no run is seen, and no alert as a series: see what fires below.",
            ),
            views=(_FIRES, _checkpoints(config), lost_time(config, _FLEET, LOST_SHARE, NO_TIME)),
        ),
        rows=_ROWS,
        config=config,
    )


_FLEET = opens(FLEET_UID, "All runs")
_FIRES = Panel(
    title="What fires, whoever evaluates it",
    description="Alerts of all clusters by the rules of this Grafana and of all its data sources with "
    "rules: Prometheus, Mimir, Thanos with its rulers, VictoriaMetrics with -vmalert.proxyURL. "
    "RankwatchWatchdog always fires: without it, alerts go unseen here. What Alertmanager silences or "
    "inhibits stands here, too.",
    no_data="this Grafana sees no rules, or its user may not read them.",
    unit="short",
    drawing=Drawing.ALERT_LIST,
    alerts=OURS,
)


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    run = opens(RUN_DEBUG_UID, "Run debug")
    good = _of("run:rankwatch_checkpoint_last_good_timestamp_seconds:max")
    started = _of("run:rankwatch_rank_start_timestamp_seconds:min")
    down = f'up{{job="{config.agent_job}", {CLUSTER}}}'
    return (
        alert_count(
            "Pages",
            "Alerts of all clusters that somebody must act on now.",
            f'{OURS}, severity="critical"',
            RED,
        ),
        alert_count(
            "Tickets",
            "Alerts of all clusters that can wait until the morning.",
            f'{OURS}, severity="warning"',
            ORANGE,
        ),
        verdict(
            "Runs stopped",
            "Runs that stand still, have failed, or have lost a node, by what rules record, with or without "
            "an alert: all their GPUs wait.",
            count_of(f"group by (cluster, run) ({' or '.join(map(_of, _STOPPED))})"),
            steps=((1, RED),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(run,),
        ),
        verdict(
            "Lost time, of all ranks",
            "Share of the time of all ranks in the last hour that made no progress that lasts. 100 %: all "
            "ranks of all runs stood still. Red: it alone misses the objective of goodput.",
            f"sum({LOST_SHARE})",
            unit="percentunit",
            steps=too_much(config),
            no_data=NO_TIME,
            links=(_FLEET,),
        ),
        verdict(
            "Agents down",
            "Agents that Prometheus cannot scrape. Above zero, boards may show old figures.",
            f"count({down} == 0) or 0 * count({down})",
            steps=((1, ORANGE),),
            mappings=NONE,
            no_data="Prometheus knows no agent.",
            links=(opens(AGENTS_UID, "Agents"),),
        ),
        verdict(
            "Checkpoint age, of budget",
            "Age of the last good checkpoint as a share of what the run may lose, of the run with the most; "
            "of one that never saved, since its start. 100 %: a crash loses all that the budget allows, "
            "RankwatchCheckpointAtRisk (stale); or the checkpoint is younger than the first NaN.",
            f"max((time() - ({good} or {started})) / on (cluster, run) "
            f"run:rankwatch_checkpoint_age_budget_seconds:max{{{CLUSTER}}} "
            f"unless on (cluster, run) {_poisoned()} or {_poisoned()} ^ 0)",
            unit="percentunit",
            steps=((0.8, YELLOW), (1, RED)),
            no_data="no run is running.",
            links=(run,),
        ),
    )


_STOPPED = ("run:rankwatch_stall_seconds:max", FAILED, "run_node:rankwatch_ranks_lost_timestamp_seconds:max")
"""What rules record of runs that make no progress."""


def _of(series: str, more: str = "") -> str:
    return f"{series}{{{CLUSTER}{more}}}"


def _first_nan(at: str = "") -> str:
    """The first step of each run at which the loss was not finite; `at` is another moment to look at."""
    first = _of("rank:rankwatch_scalar_first_nonfinite_step:first", ', name="loss"')
    return f"min by (cluster, run) ({first}{at})"


def _poisoned() -> str:
    """The step of the last good checkpoint, where it holds what came after a NaN."""
    return f"({_of(_CHECKPOINT_STEP)} >= on (cluster, run) {_first_nan()})"


def _clean(config: RuleConfig) -> str:
    """The step of the last good checkpoint; after a NaN, that of the last one before it."""
    within = f"{_CLEAN_WITHIN}:{duration(config.scrape_interval_seconds)}"
    now = _first_nan(" @ end()")
    before = f"max_over_time(({_of(_CHECKPOINT_STEP)} < on (cluster, run) {now})[{within}])"
    return (
        f"max by (cluster, run) ({before} or {_of(_CHECKPOINT_STEP)} unless on (cluster, run) {_first_nan()})"
    )


def _checkpoints(config: RuleConfig) -> Panel:
    good = _of("run:rankwatch_checkpoint_last_good_timestamp_seconds:max")
    at_risk = f"sum by (cluster, run) ({_of('run:rankwatch_work_at_risk_seconds:sum')})"
    age, never = f"max by (cluster, run) (time() - {good})", f"{_NEVER} + 0 * {at_risk}"
    after_nan = f"{_AFTER_NAN} * {_poisoned()} ^ 0"
    return Panel(
        title="Last good checkpoint and work at risk",
        description="A crash now goes back to this step and loses these rank-hours; verified is the newest "
        "step whose files an agent or the run has read back. Red: too old, or a checkpoint "
        "of a step after which the loss was not finite. Then resume from the step shown, the last good one "
        f"of the last {_CLEAN_WITHIN} before the first NaN. Work at risk is in rank-hours.",
        no_data="no run has saved a checkpoint or declared an interval of saves.",
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("-A",),
        queries=(
            Query(expression=most(f"{after_nan} or {age} or {never}", 50), legend="{{run}}"),
            Query(expression=_clean(config), legend="{{run}}"),
            Query(
                expression=f"max by (cluster, run) ({_of('rankwatch_checkpoint_last_verified_step')} "
                f"or {_of('rankwatch_checkpoint_verified_step')}) unless on (cluster, run) {_poisoned()}",
                legend="{{run}}",
            ),
            Query(expression=f"{at_risk} / 3600", legend="{{run}}"),
            Query(expression=_first_nan(), legend="{{run}}"),
        ),
        columns=(
            Column(name="run", title="Run", link=TO_CHECKPOINTS),
            Column(
                name="A",
                title="Age",
                unit="s",
                width=95,
                steps=((config.checkpoint_age_budget_seconds, RED),),
                mappings=((f"{_NEVER}", "✗ never", ORANGE), (f"{_AFTER_NAN}", "✗ after NaN", RED)),
            ),
            Column(name="B", title="Back to", width=65),
            Column(name="C", title="Verified", width=70),
            Column(name="D", title="At risk", width=65, decimals=2),
            Column(name="E", title="NaN from", width=75, steps=((0, RED),)),
        ),
    )


_HISTORY = (
    Panel(
        title="Alerts",
        description="When each alert fired, by run and node. Those that begin first are nearest to the "
        "cause; what begins later is often its consequence. " + READS,
        no_data="no alert fired in the time shown.",
        unit="short",
        drawing=Drawing.STATES,
        span=24,
        height=12,
        steps=((1, ORANGE),),
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(f"max by (cluster, alertname, reason, run, node) ({firing()})", 50),
                legend="{{alertname}} {{reason}} {{run}} {{node}}",
            ),
        ),
    ),
)

_RUNS = (
    Panel(
        title="Since last progress",
        description="Time since any rank of a run completed a step, checkpoint or evaluation, as a share of "
        "what the run has learnt to be normal. 100 %: as long as its longest normal pause; above it, "
        "RankwatchRunStalled.",
        no_data="no run is running.",
        unit="percentunit",
        span=24,
        threshold=1.0,
        queries=(
            Query(
                expression=most(
                    f"(time() - {_of('run:rankwatch_progress_timestamp_seconds:max')}) "
                    f"/ on (cluster, run) {_of('run:rankwatch_progress_timeout_seconds:max')}"
                ),
                legend="{{run}}",
            ),
        ),
        links=(TO_RUN,),
    ),
)

_ROWS: Rows = (Row("What came first?", lambda _: _HISTORY), Row("Which runs stand still?", lambda _: _RUNS))
