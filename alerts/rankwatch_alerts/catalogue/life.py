"""The indicators of how runs begin and end, and of when they will be done."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import Good, sli
from rankwatch_alerts.delivery import Owner
from rankwatch_alerts.rules import Alert

LIFE = (
    sli(
        "run success",
        "How many attempts end well, by class of runs, and why do the others not?",
        "rankwatch_run_attempts_total",
        "rankwatch_run_failures_total",
        "class:rankwatch_run_success:ratio",
        "run:rankwatch_node_lost_timestamp_seconds:min",
        figure="class:rankwatch_run_success:ratio",
        unit="share of attempts",
        good=Good.HIGHER,
        objective="success_objectives",
        window="objective_window_seconds",
        owner=Owner.PLATFORM,
        no_alert="each failure has its own alert, and what share is good differs between classes",
    ),
    sli(
        "failure of a run",
        "Has the run failed, on which rank, and by what?",
        "rankwatch_run_attempt_end_timestamp_seconds",
        figure="count by (cluster, run) (run:rankwatch_run_failed_timestamp_seconds:max)",
        unit="failures",
        good=Good.LOWER,
        objective=0.0,
        alerts=(Alert.RUN_FAILED,),
    ),
    sli(
        "crash loop",
        "Do its restarts bring it further?",
        "rankwatch_run_attempts_without_progress",
        figure="max by (cluster, run) (rankwatch_run_attempts_without_progress)",
        unit="attempts",
        good=Good.LOWER,
        objective="crash_loop_attempts",
        alerts=(Alert.RUN_CRASH_LOOPING,),
    ),
    sli(
        "restarts",
        "How often are runs started again, by whom, and how often are they preempted?",
        "rankwatch_run_starts_total",
        "rankwatch_run_restarts",
        "rankwatch_run_requeues",
        "class:rankwatch_run_restarts:ratio",
        "class:rankwatch_run_preemptions:increase",
        figure="class:rankwatch_run_restarts:ratio",
        unit="share of attempts",
        good=Good.LOWER,
        window="objective_window_seconds",
        owner=Owner.PLATFORM,
        no_alert="a restart that brings the run further is the cure, and not the fault",
    ),
    sli(
        "time to first step",
        "How long does the run take to start?",
        "rankwatch_run_time_to_first_step_seconds",
        "run:rankwatch_run_time_to_first_step_seconds:max",
        "run:rankwatch_startup_seconds:max",
        figure="run:rankwatch_startup_seconds:max",
        unit="seconds",
        good=Good.LOWER,
        objective="startup_budget_seconds",
        alerts=(Alert.STARTUP_SLOW,),
    ),
    sli(
        "time to complete",
        "When will the run be done, and is that in time?",
        "run:rankwatch_time_to_complete_seconds:estimate",
        "run:rankwatch_deadline_margin_seconds:estimate",
        figure="run:rankwatch_deadline_margin_seconds:estimate",
        unit="seconds ahead of the deadline",
        good=Good.HIGHER,
        objective=0.0,
        window="pace_window_seconds",
        needs="a declared number of steps and deadline",
        alerts=(Alert.RUN_BEHIND_PLAN,),
    ),
)
"""In the order of a life."""
