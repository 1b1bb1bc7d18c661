"""Rows: how do its attempts end, and when will it be done?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.links import TO_NODE, TO_RANK
from rankwatch_dashboards.panels import CLUSTER, GREEN, ORANGE, RED, RUN, Column, Drawing, Panel, Query, most


def life(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        ENDS,
        _restarts(config),
        _FIRST_STEP,
        TIME_LEFT,
        _MARGIN,
        _ATTEMPTS_OF_CLASSES,
        _SUCCESS_OF_CLASSES,
        _RESTARTS_OF_CLASSES,
    )


_ENDED = ("attempt", "outcome", "kind", "exception", "rank", "node", "message")
ENDS = Panel(
    title="How the last attempt ended",
    description="The newest attempt that is over, with the rank that failed first. Each node shows what its "
    "own ranks tell: one with the kind collective saw only victims.",
    no_data="no attempt of this run has ended.",
    unit="short",
    drawing=Drawing.TABLE,
    span=24,
    height=6,
    sorted_by=("-A",),
    queries=(
        Query(
            expression=most(
                f"1000 * max by (run, {', '.join(_ENDED)}) "
                f"(rankwatch_run_attempt_end_timestamp_seconds{{{RUN}}})"
            ),
            legend="{{run}} attempt {{attempt}} on {{node}}",
        ),
    ),
    columns=(
        Column(name="A", title="Ended", unit="dateTimeFromNow", width=150),
        Column(name="attempt", title="Attempt", width=80),
        Column(
            name="outcome",
            title="Outcome",
            width=110,
            mappings=(("finished", "", GREEN), ("failed", "", RED), ("preempted", "", ORANGE)),
        ),
        Column(name="kind", title="Kind", width=120),
        Column(name="exception", title="Exception", width=180),
        Column(name="rank", title="Rank", width=70, link=TO_RANK),
        Column(name="node", title="Node", width=160, link=TO_NODE),
        Column(name="message", title="Message"),
    ),
    empty_when_healthy=True,
    empty_text="No attempt has ended.",
)


def _restarts(config: RuleConfig) -> Panel:
    return Panel(
        title="Starts of the run",
        description="Starts by the scheduler and by the launcher, and attempts in a row that brought no new "
        "step; nodes in reserve, as NVRx's launcher reports them. At the line: RankwatchRunFailed "
        "(restarts_fail).",
        unit="short",
        span=6,
        threshold=config.crash_loop_attempts,
        queries=(
            Query(expression=f"max by (run) (rankwatch_run_requeues{{{RUN}}})", legend="{{run}} requeues"),
            Query(expression=f"max by (run) (rankwatch_run_restarts{{{RUN}}})", legend="{{run}} restarts"),
            Query(
                expression=f"max by (run) (rankwatch_run_attempts_without_progress{{{RUN}}})",
                legend="{{run}} without a new step",
            ),
            Query(
                expression=f'max by (run) (rankwatch_run_nodes{{{RUN}, state="standby"}})',
                legend="{{run}} nodes in reserve",
            ),
        ),
    )


_FIRST_STEP = Panel(
    title="Time to first step",
    description="From the start of the processes to the end of the first step, or until now. Imports, "
    "process groups, the restore and compilation are in it; a run that restarts pays it each time.",
    unit="s",
    span=6,
    queries=(Query(expression=f"run:rankwatch_startup_seconds:max{{{RUN}}}", legend="{{run}}"),),
)

TIME_LEFT = Panel(
    title="Time left",
    description="Until the target steps are reached, at the pace of the last hours with checkpoints, "
    "evaluations, restarts and repeated steps. Empty where the run names no target.",
    unit="s",
    drawing=Drawing.NUMBER,
    span=4,
    queries=(
        Query(expression=f"run:rankwatch_time_to_complete_seconds:estimate{{{RUN}}}", legend="{{run}}"),
    ),
)

_MARGIN = Panel(
    title="Ahead of the deadline",
    description="Time from the estimated end to the deadline. Below zero for long: RankwatchRunLate "
    "(behind_plan). Empty where the run declares no deadline.",
    unit="s",
    threshold=0.0,
    queries=(Query(expression=f"run:rankwatch_deadline_margin_seconds:estimate{{{RUN}}}", legend="{{run}}"),),
)

_ATTEMPTS_OF_CLASSES = Panel(
    title="Attempts by outcome",
    description="Ends of attempts of all runs of the cluster, by class.",
    unit="short",
    drawing=Drawing.STACKED,
    queries=(
        Query(
            expression="sum by (run_class, outcome) "
            f"(increase(rankwatch_run_attempts_total{{{CLUSTER}}}[$__rate_interval]))",
            legend="{{run_class}} {{outcome}}",
        ),
    ),
)

_SUCCESS_OF_CLASSES = Panel(
    title="Success rate by class",
    description="Attempts that finished among those that finished or failed, in a week.",
    unit="percentunit",
    queries=(Query(expression=f"class:rankwatch_run_success:ratio{{{CLUSTER}}}", legend="{{run_class}}"),),
)

_RESTARTS_OF_CLASSES = Panel(
    title="Restarts and failures by class",
    description="Share of attempts that were restarts or requeues, and preemptions, in a week; and failures "
    "by kind as they happen.",
    unit="short",
    queries=(
        Query(
            expression=f"class:rankwatch_run_restarts:ratio{{{CLUSTER}}}",
            legend="{{run_class}} share of restarts",
        ),
        Query(
            expression=f"class:rankwatch_run_preemptions:increase{{{CLUSTER}}}",
            legend="{{run_class}} preemptions",
        ),
        Query(
            expression="sum by (run_class, kind) "
            f"(increase(rankwatch_run_failures_total{{{CLUSTER}}}[$__rate_interval])) > 0",
            legend="{{run_class}} {{kind}}",
        ),
    ),
)
