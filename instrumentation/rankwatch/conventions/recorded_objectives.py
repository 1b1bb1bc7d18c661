"""Recorded series of how each class of runs does against its objectives."""

from __future__ import annotations

from rankwatch.conventions.declaration import recorded
from rankwatch.conventions.labels import Label

_CLASS = (Label.CLUSTER, Label.RUN_CLASS)

RECORDED_OBJECTIVES = (
    recorded(
        "run:rankwatch_run_class:info",
        (Label.CLUSTER, Label.RUN, Label.RUN_CLASS),
        "Class of the run; always 1.",
    ),
    recorded(
        "class:rankwatch_total_rank_seconds:increase",
        _CLASS,
        "Rank-seconds that runs of the class asked for within one interval of objectives.",
    ),
    recorded(
        "class:rankwatch_good_rank_seconds:increase",
        _CLASS,
        "Those of them that made progress that lasts. To be summed, and divided last.",
    ),
    recorded(
        "class:rankwatch_goodput_objective:ratio", _CLASS, "Goodput that the class is to reach, as it is set."
    ),
    recorded(
        "class:rankwatch_goodput_of_period:ratio",
        _CLASS,
        "Goodput of the class over the period of the budget: one sum over another.",
    ),
    recorded(
        "class:rankwatch_goodput_budget_left:ratio",
        _CLASS,
        "Share of the period's budget of lost time that is left; negative where the objective is missed.",
    ),
    recorded(
        "class:rankwatch_run_successes:increase",
        _CLASS,
        "Attempts that finished within one interval of objectives.",
    ),
    recorded(
        "class:rankwatch_run_failures:increase",
        _CLASS,
        "Attempts that failed or lost a node within one interval of objectives.",
    ),
    recorded(
        "class:rankwatch_run_preempted:increase",
        _CLASS,
        "Attempts that were preempted within one interval of objectives.",
    ),
    recorded(
        "class:rankwatch_run_starts:increase",
        _CLASS,
        "Attempts that began within one interval of objectives.",
    ),
    recorded(
        "class:rankwatch_run_repeated_starts:increase",
        _CLASS,
        "Those of them that launcher or scheduler started again.",
    ),
    recorded(
        "class:rankwatch_run_success_objective:ratio",
        _CLASS,
        "Share of attempts that is to end well, as it is set.",
    ),
    recorded(
        "class:rankwatch_runs_failed:count",
        _CLASS,
        "Different runs that failed or lost a node within the window of pages on success.",
    ),
    recorded(
        "class:rankwatch_runs_failed_limit:count",
        _CLASS,
        "How many of them are more than chance, by the objective and the runs that are expected.",
    ),
    recorded(
        "class:rankwatch_run_success:ratio",
        _CLASS,
        "Share of attempts that finished among those that finished, failed, or lost a node, over the window "
        "of objectives.",
    ),
    recorded(
        "class:rankwatch_run_success_of_period:ratio",
        _CLASS,
        "The same over the period of the budgets.",
    ),
    recorded(
        "class:rankwatch_run_restarts:ratio",
        _CLASS,
        "Share of attempts that launcher or scheduler started again, over the window of objectives.",
    ),
    recorded(
        "class:rankwatch_run_preemptions:increase",
        _CLASS,
        "Attempts that were preempted within the same window.",
    ),
)
