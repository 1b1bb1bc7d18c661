"""The board of a person on call: what is wrong now, who is blamed, and what could be lost."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import HARDWARE_ALERTS, HARDWARE_UID, ON_CALL_UID, RUN_DEBUG_UID, Alert, RuleConfig
from rankwatch_alerts.recording.nodes import CHECKPOINT_STEP
from rankwatch_dashboards.alert_table import firing_alerts
from rankwatch_dashboards.board import FirstScreen, Row, Rows, any_cluster, board
from rankwatch_dashboards.firing import (
    SILENCES,
    STOPPED,
    age_of,
    count_of,
    firing,
    named,
    notified,
)
from rankwatch_dashboards.links import TO_CHECKPOINTS, TO_NODE, TO_RANK, TO_RUN, opens, to_runbook
from rankwatch_dashboards.panels import (
    CLUSTER,
    NONE,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Drawing,
    Panel,
    Query,
    most,
    verdict,
)
from rankwatch_dashboards.suspects import suspects
from rankwatch_dashboards.words import ALERTS, SUSPICIONS

_NEVER = 10**9
"""Age in seconds of a checkpoint that a run never saved: it comes first, and its cell says so."""
_AFTER_NAN = 2 * _NEVER
"""The same where the last good checkpoint is younger than the first loss that was not finite."""
_CLEAN_WITHIN = "6h:15s"
_NO_AGENT = "no agent is scraped, and nothing is known of any run."


def on_call(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the board."""
    return board(
        "Rankwatch / On-call",
        ON_CALL_UID,
        "What is wrong now and since when, who is blamed, which work is at risk, and what is not seen.",
        variables=(any_cluster("label_values(rankwatch_agent_info, cluster)"),),
        events=CLUSTER,
        screen=FirstScreen(
            verdicts=_verdicts(),
            main=firing_alerts(
                config,
                "What is wrong now",
                CLUSTER,
                no_data="no alert fires. That is health only while no telemetry is silent.",
            ),
            views=(_BLAMED, _checkpoints(config), _nodes(config)),
        ),
        rows=_ROWS,
        config=config,
    )


def _verdicts() -> tuple[Panel, ...]:
    run, hardware = opens(RUN_DEBUG_UID, "Run debug"), opens(HARDWARE_UID, "Nodes and hardware")
    pages = f'{CLUSTER}, severity="critical", page!="no"'
    good = _of("run:rankwatch_checkpoint_last_good_timestamp_seconds:max")
    started = _of("run:rankwatch_rank_start_timestamp_seconds:min")
    stopped = firing(f"{CLUSTER}, {named(STOPPED)}")
    return (
        verdict(
            "Pages",
            "Alerts that somebody must act on now. Not counted: alerts that another one explains, and runs "
            "that are too small to page.",
            count_of(notified(pages)),
            steps=((1, RED),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(run,),
        ),
        verdict(
            "Oldest page fires for",
            "For how long the oldest of these alerts holds. Old and still open: escalate.",
            f"max({age_of(pages, ('alertname',), notified(pages))}) "
            f"or 0 * count(rankwatch_agent_info{{{CLUSTER}}})",
            unit="s",
            steps=((0.001, RED),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(run,),
        ),
        verdict(
            "Tickets",
            "Alerts that can wait until the morning; they stand below the pages. What also pages is not "
            "counted.",
            count_of(_tickets()),
            steps=((1, ORANGE),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(run,),
        ),
        verdict(
            "Runs stopped",
            "Runs that stall, have failed, or have lost a rank or a node: all their GPUs wait.",
            count_of(f"count by (cluster, run) ({stopped})"),
            steps=((1, RED),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(run,),
        ),
        verdict(
            "Telemetry silent",
            "Alerts on agents, collectors, records and rules. Above zero, boards may show old figures.",
            count_of(firing(f"{CLUSTER}, {named(SILENCES)}")),
            steps=((1, ORANGE),),
            mappings=NONE,
            no_data=_NO_AGENT,
            links=(hardware,),
        ),
        verdict(
            "Checkpoint age, of budget",
            "Age of the last good checkpoint as a share of what the run may lose, of the run with the most; "
            "of one that never saved, since its start. At 100 %: RankwatchCheckpointStale, if it has "
            "saved or declares an interval, or a checkpoint that is younger than the first NaN.",
            f"max((time() - ({good} or {started})) / on (cluster, run) "
            f"run:rankwatch_checkpoint_age_budget_seconds:max{{{CLUSTER}}} "
            f"unless on (cluster, run) {_poisoned()} or {_poisoned()} ^ 0)",
            unit="percentunit",
            steps=((0.8, YELLOW), (1, RED)),
            no_data="no run is running.",
            links=(run,),
        ),
    )


def _tickets() -> str:
    """Alerts with the severity of a ticket, and pages of runs too small to page."""
    same = "on (cluster, alertname, run, rank, node)"
    tickets = notified(f'{CLUSTER}, severity="warning"')
    pages = firing(f'{CLUSTER}, severity="critical"')
    small = notified(f'{CLUSTER}, severity="critical", page="no"')
    return f"{small} or {tickets} unless {same} {pages}"


def _of(series: str, more: str = "") -> str:
    return f"{series}{{{CLUSTER}{more}}}"


_BLAMED = Panel(
    title="Who is blamed",
    description="Ranks that rules suspect now, with the reason, also before the alert has lasted long enough "
    "to fire. Where only an alert names the rank, the cause is that alert.",
    no_data="no rank is suspected. A run can still be slow from a cause without a rank: see its debug board.",
    unit="short",
    drawing=Drawing.TABLE,
    empty_when_healthy=True,
    empty_text="No rank is suspected.",
    sorted_by=("run",),
    queries=(
        Query(
            expression=most(suspects(CLUSTER), 50),
            legend="rank {{rank}} on {{node}}: {{cause}}",
        ),
    ),
    columns=(
        Column(name="run", title="Run", width=105, link=TO_RUN),
        Column(name="rank", title="Rank", width=55, link=TO_RANK),
        Column(name="node", title="Node", width=75, link=TO_NODE),
        Column(name="cause", title="Cause", words=SUSPICIONS),
    ),
)


def _first_nan(at: str = "") -> str:
    """The first step of each run at which the loss was not finite; `at` is another moment to look at."""
    first = _of("rank:rankwatch_scalar_first_nonfinite_step:first", ', name="loss"')
    return f"min by (cluster, run) ({first}{at})"


def _poisoned() -> str:
    """The step of the last good checkpoint, where it holds what came after a NaN."""
    return f"({_of(CHECKPOINT_STEP)} >= on (cluster, run) {_first_nan()})"


def _clean() -> str:
    """The step of the last good checkpoint; after a NaN, that of the last one before it."""
    now = _first_nan(" @ end()")
    before = f"max_over_time(({_of(CHECKPOINT_STEP)} < on (cluster, run) {now})[{_CLEAN_WITHIN}])"
    return (
        f"max by (cluster, run) ({before} or {_of(CHECKPOINT_STEP)} unless on (cluster, run) {_first_nan()})"
    )


def _checkpoints(config: RuleConfig) -> Panel:
    good = _of("run:rankwatch_checkpoint_last_good_timestamp_seconds:max")
    at_risk = f"sum by (cluster, run) ({_of('run:rankwatch_work_at_risk_seconds:sum')})"
    age, never = f"max by (cluster, run) (time() - {good})", f"{_NEVER} + 0 * {at_risk}"
    after_nan = f"{_AFTER_NAN} * {_poisoned()} ^ 0"
    return Panel(
        title="Last good checkpoint and work at risk",
        description="A crash now goes back to this step and loses these rank-hours; verified is the newest "
        "step whose files an agent or the run has read back. Red: RankwatchCheckpointStale, and a checkpoint "
        "of a step after which the loss was not finite. Then resume from the step shown, the last good one "
        f"of the last {_CLEAN_WITHIN.partition(':')[0]} before the first NaN. Work at risk is in rank-hours.",
        no_data="no run has saved a checkpoint or declared an interval of saves.",
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("-A",),
        queries=(
            Query(expression=most(f"{after_nan} or {age} or {never}", 50), legend="{{run}}"),
            Query(expression=_clean(), legend="{{run}}"),
            Query(
                expression=f"max by (cluster, run) ({_of('rankwatch_checkpoint_last_verified_step')} "
                f"or {_of('rankwatch_checkpoint_verified_step')}) unless on (cluster, run) {_poisoned()}",
                legend="{{run}}",
            ),
            Query(
                expression=f"{at_risk} / 3600",
                legend="{{run}}",
            ),
            Query(expression=_first_nan(), legend="{{run}}"),
        ),
        columns=(
            Column(name="run", title="Run", link=TO_CHECKPOINTS),
            Column(
                name="A",
                title="Age",
                unit="s",
                width=80,
                steps=((config.checkpoint_age_budget_seconds, RED),),
                mappings=((f"{_NEVER}", "never", ORANGE), (f"{_AFTER_NAN}", "after NaN", RED)),
            ),
            Column(name="B", title="Back to", width=65),
            Column(name="C", title="Verified", width=70),
            Column(name="D", title="At risk", width=65, decimals=2),
            Column(name="E", title="NaN from", width=75, steps=((0, RED),)),
        ),
    )


def _nodes(config: RuleConfig) -> Panel:
    wanted = f'{CLUSTER}, node!="", {named((*HARDWARE_ALERTS, Alert.NODE_LOST, *SILENCES))}'
    labels = ("node", "alertname", "run")
    return Panel(
        title="Failing nodes and silent agents",
        description="Nodes with an alert on hardware, on their loss, or on what their agent cannot tell. The "
        "alert opens its runbook, the node its hardware.",
        no_data="no node fails and no agent is silent.",
        unit="short",
        drawing=Drawing.TABLE,
        empty_when_healthy=True,
        empty_text="No alert on a node.",
        sorted_by=("-A",),
        queries=(Query(expression=most(age_of(wanted, labels, notified(wanted)), 50), legend="{{node}}"),),
        columns=(
            Column(name="run", title="Run", width=105, link=TO_RUN),
            Column(name="node", title="Node", width=75, link=TO_NODE),
            Column(name="alertname", title="Alert", words=ALERTS, link=to_runbook(config)),
            Column(name="A", title="Fires for", unit="s", width=80),
        ),
    )


_HISTORY = (
    Panel(
        title="Alerts",
        description="When each alert fired, by run and node. Those that begin first are nearest to the "
        "cause; what begins later is often its consequence.",
        no_data="no alert fired in the time shown.",
        unit="short",
        drawing=Drawing.STATES,
        span=24,
        height=12,
        steps=((1, ORANGE),),
        empty_when_healthy=True,
        queries=(
            Query(
                expression=most(f"max by (cluster, alertname, run, node) ({firing()})", 50),
                legend="{{alertname}} {{run}} {{node}}",
            ),
        ),
    ),
)

_RUNS = (
    Panel(
        title="Since last progress",
        description="Time since any rank of a run completed a step, checkpoint or evaluation, as a share of "
        "what the run has learnt to be normal. Above 100 %: RankwatchRunStalled.",
        no_data="no run is running.",
        unit="percentunit",
        span=12,
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
    Panel(
        title="Ranks that run",
        description="Ranks of each run that start or run. A fall that does not come back: "
        "RankwatchRankLost or RankwatchNodeLost.",
        no_data="no run is running.",
        unit="short",
        span=12,
        queries=(Query(expression=most(_of("run:rankwatch_ranks_running:sum")), legend="{{run}}"),),
        links=(TO_RUN,),
    ),
)


def _silent(config: RuleConfig) -> tuple[Panel, ...]:
    return (
        Panel(
            title="Agents by age of their newest reading",
            description="Time since any collector of the agent last succeeded, the 20 oldest. Above a few "
            "minutes the node is not seen: RankwatchCollectorFailing or RankwatchTelemetryAbsent.",
            no_data=_NO_AGENT,
            unit="s",
            drawing=Drawing.BARS,
            span=12,
            least=0,
            queries=(
                Query(
                    expression=most(
                        "time() - max by (cluster, node) "
                        f"({_of('rankwatch_collector_last_success_timestamp_seconds')})"
                    ),
                    legend="{{node}}",
                ),
            ),
            links=(TO_NODE,),
        ),
        Panel(
            title="Collectors by missed readings",
            description="Intervals since each collector last succeeded, the 20 with the most. Red: "
            "RankwatchCollectorFailing, and its series are missing on all boards.",
            no_data=_NO_AGENT,
            unit="short",
            drawing=Drawing.BARS,
            span=12,
            least=0,
            steps=((config.collector_overdue_intervals, RED),),
            queries=(
                Query(
                    expression=most(
                        f"(time() - {_of('rankwatch_collector_last_success_timestamp_seconds')}) "
                        f"/ {_of('rankwatch_collector_interval_seconds')}"
                    ),
                    legend="{{node}} {{collector}}",
                ),
            ),
            links=(TO_NODE,),
        ),
    )


_ROWS: Rows = (
    Row("What came first?", lambda _: _HISTORY),
    Row("Which runs stand still?", lambda _: _RUNS),
    Row("Which agents are silent?", _silent),
)
