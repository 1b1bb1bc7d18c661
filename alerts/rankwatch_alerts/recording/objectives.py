"""How each class of runs does against its objectives, over days and weeks.

What is good and what there was are recorded as sums for each class and interval. A ratio over any window is
one sum over another: an average of ratios would weigh an idle hour of four GPUs as a busy one of 16,384.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS, failures_to_page, of_class
from rankwatch_alerts.recording.goodput import RANKS_BY_STATE_NOW
from rankwatch_alerts.recording.life import FAILED, NODES_LOST
from rankwatch_alerts.rules import RUN, RecordingRule, duration, recorded

CLASS = "cluster, run_class"
CLASS_OF_RUN = "run:rankwatch_run_class:info"
GOOD_TIME = "class:rankwatch_good_rank_seconds:increase"
TOTAL_TIME = "class:rankwatch_total_rank_seconds:increase"
GOODPUT_OBJECTIVE = "class:rankwatch_goodput_objective:ratio"
GOODPUT = "class:rankwatch_goodput_of_period:ratio"
BUDGET_LEFT = "class:rankwatch_goodput_budget_left:ratio"
SUCCESSES = "class:rankwatch_run_successes:increase"
FAILURES = "class:rankwatch_run_failures:increase"
STARTS = "class:rankwatch_run_starts:increase"
REPEATED = "class:rankwatch_run_repeated_starts:increase"
PREEMPTED = "class:rankwatch_run_preempted:increase"
SUCCESS_OBJECTIVE = "class:rankwatch_run_success_objective:ratio"
SUCCESS_OF_PERIOD = "class:rankwatch_run_success_of_period:ratio"
RUNS_FAILED = "class:rankwatch_runs_failed:count"
RUNS_FAILED_LIMIT = "class:rankwatch_runs_failed_limit:count"
SUCCESS = "class:rankwatch_run_success:ratio"
RESTARTS = "class:rankwatch_run_restarts:ratio"
PREEMPTIONS = "class:rankwatch_run_preemptions:increase"

_ATTEMPTS = "rankwatch_run_attempts_total"


def objective_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """In the order of evaluation: sums of the interval, then what is over longer windows."""
    return (
        recorded(CLASS_OF_RUN, f"topk by ({RUN}) (1, group by ({RUN}, run_class) (rankwatch_run_info))"),
        *_goodput_rules(config),
        *_attempt_rules(config),
        *_failed_run_rules(config),
        *_rates(config),
    )


def _goodput_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    productive = f'{{state="{GoodputState.PRODUCTIVE}"}}'
    period = duration(config.slo_period_seconds)
    return (
        recorded(TOTAL_TIME, _rank_seconds(config, "")),
        recorded(GOOD_TIME, _rank_seconds(config, productive)),
        recorded(GOODPUT_OBJECTIVE, _by_class(config, config.goodput_objectives, TOTAL_TIME)),
        recorded(GOODPUT, f"{_sum(GOOD_TIME, period)} / on ({CLASS}) ({_sum(TOTAL_TIME, period)} > 0)"),
        recorded(BUDGET_LEFT, f"1 - (1 - {GOODPUT}) / on ({CLASS}) (1 - {GOODPUT_OBJECTIVE})"),
    )


def _rank_seconds(config: RuleConfig, matchers: str) -> str:
    """The goodput rules have a rate over the same range: of the interval up to their last evaluation.

    The counters grow from their birth on, so that a rate misses less than one scrape of a run.
    """
    of_run = f"sum by ({RUN}) ({config.slo_interval_seconds:g} * {RANKS_BY_STATE_NOW}{matchers})"
    remembered = duration(config.absence_lookback_seconds)
    return f"""
        sum by ({CLASS}) (
          {of_run}
          * on ({RUN}) group_left (run_class)
          topk by ({RUN}) (1, last_over_time({CLASS_OF_RUN}[{remembered}]))
        )
    """


def _grown(config: RuleConfig, counter: str) -> str:
    """What a counter grew by in each interval.

    A range of one scrape more than the interval meets each step of the counter once: the last sample of one
    range is the first of the next. A rate over it, times the interval, takes the extrapolation out.
    """
    interval = config.slo_interval_seconds
    return f"{interval:g} * rate({counter}[{duration(interval + config.scrape_interval_seconds)}])"


def _attempt_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The counters have no label of a run and begin at 0, so that no first event is missed."""
    return (
        recorded(SUCCESSES, _counted(config, f'{_ATTEMPTS}{{outcome="finished"}}')),
        recorded(FAILURES, _failures(config)),
        recorded(PREEMPTED, _counted(config, f'{_ATTEMPTS}{{outcome="preempted"}}')),
        recorded(STARTS, _counted(config, "rankwatch_run_starts_total")),
        recorded(REPEATED, _counted(config, 'rankwatch_run_starts_total{cause!="first"}')),
        recorded(SUCCESS_OBJECTIVE, _by_class(config, config.success_objectives, SUCCESSES)),
    )


def _counted(config: RuleConfig, counter: str) -> str:
    """Whole events: a rate sees a little less where a counter leaves 0, as it extrapolates no further."""
    return f"sum by ({CLASS}) (round({_grown(config, counter)}))"


def _failures(config: RuleConfig) -> str:
    """An attempt whose node is lost has no agent that counts it: it counts when the loss is first seen."""
    counted = _counted(config, "rankwatch_run_failures_total")
    interval = duration(config.slo_interval_seconds)
    now, before = (
        f"last_over_time({NODES_LOST}[{interval}]{offset})" for offset in ("", f" offset {interval}")
    )
    on = f"on ({RUN}, run_class)"
    lost = f"count by ({CLASS}) ({now} unless {on} ({now} == {on} {before}))"
    return f"""
        sum by ({CLASS}) (
          {counted}
          or
          label_replace({lost}, "of", "lost", "", "")
        )
    """


def _failed_run_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Different runs, however often each of them fails."""
    window = duration(config.success_page_window_seconds)
    since = f"time() - {config.success_page_window_seconds:.10g}"
    limits = {
        run_class: float(
            failures_to_page(
                of_class(config.success_objectives, run_class),
                of_class(config.runs_expected, run_class),
                config.success_page_chance,
            )
        )
        for run_class in {**config.success_objectives, **config.runs_expected}
    }
    return (
        recorded(
            RUNS_FAILED,
            f"""
                sum by ({CLASS}) (
                  group by ({RUN}) (
                    last_over_time({FAILED}[{window}]) > {since}
                    or
                    last_over_time({NODES_LOST}[{window}]) > {since}
                  )
                  * on ({RUN}) group_left (run_class)
                  topk by ({RUN}) (1, last_over_time({CLASS_OF_RUN}[{window}]))
                )
            """,
        ),
        recorded(RUNS_FAILED_LIMIT, _by_class(config, limits, RUNS_FAILED)),
    )


def _rates(config: RuleConfig) -> tuple[RecordingRule, ...]:
    week, period = duration(config.objective_window_seconds), duration(config.slo_period_seconds)
    return (
        recorded(SUCCESS, _share_of_good(week)),
        recorded(SUCCESS_OF_PERIOD, _share_of_good(period)),
        recorded(RESTARTS, f"{_sum(REPEATED, week)} / on ({CLASS}) ({_sum(STARTS, week)} > 0)"),
        recorded(PREEMPTIONS, _sum(PREEMPTED, week)),
    )


def _share_of_good(window: str) -> str:
    good = _sum(SUCCESSES, window)
    return f"{good} / on ({CLASS}) (({good} + on ({CLASS}) {_sum(FAILURES, window)}) > 0)"


def _sum(record: str, window: str) -> str:
    return f"sum_over_time({record}[{window}])"


def _by_class(config: RuleConfig, values: Mapping[str, float], series: str) -> str:
    """The value of its class for each class that had the series within the period: no gap hides it."""
    period = duration(config.slo_period_seconds)
    named = [
        f'0 * last_over_time({series}{{run_class="{run_class}"}}[{period}]) + {value:g}'
        for run_class, value in values.items()
        if run_class != DEFAULT_CLASS
    ]
    # Of a class, the first that there is counts.
    return "\nor\n".join((*named, f"0 * last_over_time({series}[{period}]) + {values[DEFAULT_CLASS]:g}"))
