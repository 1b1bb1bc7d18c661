"""Alerts on the objectives of classes of runs: success, goodput, and starts that are repeated."""

from __future__ import annotations

from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts.alerting.alert import alert_rule, listed, looked_up, opened_on, value_of
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.objectives import burn_factor
from rankwatch_alerts.recording.goodput import RANKS_BY_STATE
from rankwatch_alerts.recording.life import FAILED
from rankwatch_alerts.recording.objectives import (
    BUDGET_LEFT,
    CLASS,
    CLASS_OF_RUN,
    FAILURES,
    GOOD_TIME,
    GOODPUT_OBJECTIVE,
    REPEATED,
    RESTARTS,
    RUNS_FAILED,
    RUNS_FAILED_LIMIT,
    STARTS,
    SUCCESS_OBJECTIVE,
    SUCCESS_OF_PERIOD,
    SUCCESSES,
    TOTAL_TIME,
)
from rankwatch_alerts.rules import CHECKPOINTS_GOODPUT_UID, Alert, AlertRule, Severity, duration

_OF_CLASS = ("cluster", "run_class")
_MATCHED = "cluster=%q, run_class=%q"
_CLASS = "{{ with $labels.run_class }}class {{ . }}{{ else }}no class{{ end }}"
_BOARD = opened_on(CHECKPOINTS_GOODPUT_UID, "cluster")
_PERCENT = "humanizePercentage"
_COUNT = 'printf "%.0f"'


def objective_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Pages only where a class of runs as a whole is hit: each run that fails has pages of its own."""
    return (
        _runs_failed(config),
        _success_missed(config),
        _goodput_burns(config, "goodput_fast_budget", Severity.CRITICAL),
        _goodput_burns(config, "goodput_slow_budget", Severity.WARNING),
        _starts_repeated(config),
    )


def _runs_failed(config: RuleConfig) -> AlertRule:
    """With few runs a ratio is noise: of five runs, one failure is 20 %. A count against chance is not."""
    window = duration(config.success_page_window_seconds)
    newest = f"""topk(5, max by (cluster, run, node, kind) (
        last_over_time({FAILED}{{cluster=%q}}[{window}]) > time() - {config.success_page_window_seconds:g}
        ) * on (cluster, run) group_left ()
        group by (cluster, run) (last_over_time({CLASS_OF_RUN}{{{_MATCHED}}}[{window}])))"""
    return _of_class(
        config,
        Alert.SUCCESS_BUDGET,
        f"{RUNS_FAILED} >= on ({CLASS}) {RUNS_FAILED_LIMIT}",
        severity=Severity.CRITICAL,
        summary="More different runs of a class fail than chance explains.",
        description=(
            f"{{{{ $value }}}} different runs of {_CLASS} failed within "
            f"{_span(config.success_page_window_seconds)}; at the objective of "
            + value_of(f"{SUCCESS_OBJECTIVE}{{{_MATCHED}}}", _OF_CLASS, "its class", _PERCENT)
            + ", "
            + value_of(f"{RUNS_FAILED_LIMIT}{{{_MATCHED}}}", _OF_CLASS, "so many", _COUNT)
            + f" or more have a chance below {config.success_page_chance:.0%}. Last, by run, node and kind: "
            + listed(
                " ".join(newest.split()),
                ("cluster", *_OF_CLASS),
                "{{ $series.Labels.run }} ({{ with $series.Labels.node }}{{ . }}{{ else }}node lost{{ end }}"
                "{{ with $series.Labels.kind }}, {{ . }}{{ end }})",
                "only lost nodes",
                by="run",
            )
            + ". [[Look for what they share]] before one is started again: a node, an image, a file system."
        ),
    )


def _success_missed(config: RuleConfig) -> AlertRule:
    period = duration(config.slo_period_seconds)
    good, bad = (f"sum_over_time({each}[{period}])" for each in (SUCCESSES, FAILURES))
    return _of_class(
        config,
        Alert.SUCCESS_BUDGET,
        f"""
            {SUCCESS_OF_PERIOD} < on ({CLASS}) {SUCCESS_OBJECTIVE}
            and on ({CLASS})
            {good} + on ({CLASS}) {bad} >= {config.success_least_attempts:g}
            and on ({CLASS})
            {bad} > 1.5
        """,
        severity=Severity.WARNING,
        summary="A class of runs misses its objective of success.",
        description=(
            f"{{{{ $value | {_PERCENT} }}}} of the attempts of {_CLASS} ended well in the last "
            f"{_span(config.slo_period_seconds)}, "
            "against an objective of "
            + value_of(f"{SUCCESS_OBJECTIVE}{{{_MATCHED}}}", _OF_CLASS, "its class", _PERCENT)
            + ": "
            + value_of(f"sum_over_time({FAILURES}{{{_MATCHED}}}[{period}])", _OF_CLASS, "some", _COUNT)
            + " failed or lost a node. [[Take the kind of failure that is most frequent first]]."
        ),
    )


def _goodput_burns(config: RuleConfig, budget: str, severity: Severity) -> AlertRule:
    """Over the window, and over its last twelfth. A class without runs in half of it is too young."""
    seconds: float = getattr(config, budget.replace("_budget", "_window_seconds"))
    window, period = duration(seconds), _span(config.slo_period_seconds)
    factor = burn_factor(config, budget)
    samples = seconds / config.slo_interval_seconds / 2
    total, good = (f"sum_over_time({each}{{{_MATCHED}}}[{window}])" for each in (TOTAL_TIME, GOOD_TIME))
    left = f"clamp_min({BUDGET_LEFT}{{{_MATCHED}}}, 0) * {config.slo_period_seconds:.10g}"
    return _of_class(
        config,
        Alert.GOODPUT_BUDGET,
        f"""
            {_burn(window)} > {factor:g}
            and on ({CLASS})
            {_burn(duration(seconds / 12))} > {factor:g}
            and on ({CLASS})
            count_over_time({TOTAL_TIME}[{window}]) >= {samples:g}
        """,
        severity=severity,
        summary="A class of runs loses its budget of goodput too fast.",
        description=(
            f"In the last {_span(seconds)} the runs of {_CLASS} lost time "
            '{{ $value | printf "%.1f" }} times as fast as their goodput objective of '
            + value_of(f"{GOODPUT_OBJECTIVE}{{{_MATCHED}}}", _OF_CLASS, "the class", _PERCENT)
            + " allows: "
            + value_of(f"({total} - {good}) / 3600", _OF_CLASS * 2, "some", _COUNT)
            + " rank-hours. "
            + looked_up(
                f"{BUDGET_LEFT}{{{_MATCHED}}} > 0",
                _OF_CLASS,
                f"{{{{ . | first | value | {_PERCENT} }}}} of the budget of {period} "
                "is left, and at this pace it ends in "
                + value_of(
                    f"{left} / ({_burn(window, _MATCHED)})", _OF_CLASS * 4, "some time", "humanizeDuration"
                ),
                f"The budget of {period} is used up",
            )
            + ". Ranks by what they lose time to: "
            + listed(
                f'topk(3, sum by (state) ({RANKS_BY_STATE}{{cluster=%q, state!="{GoodputState.PRODUCTIVE}"}}'
                f" * on (cluster, run) group_left () {CLASS_OF_RUN}{{{_MATCHED}}}) > 0)",
                ("cluster", *_OF_CLASS),
                '{{ $series.Labels.state }} {{ $series.Value | printf "%.1f" }}',
                "not known",
                by="state",
            )
            + ". [[Take the largest loss first]]."
        ),
    )


def _burn(window: str, matchers: str = "") -> str:
    """How many times as fast as allowed the budget burns: lost share over allowed share."""
    of = f"{{{matchers}}}" if matchers else ""
    good, total = (f"sum_over_time({each}{of}[{window}])" for each in (GOOD_TIME, TOTAL_TIME))
    return f"(1 - {good} / on ({CLASS}) {total}) / on ({CLASS}) (1 - {GOODPUT_OBJECTIVE}{of})"


def _span(seconds: float) -> str:
    """A time as people say it: whole days from two on."""
    days, rest = divmod(seconds, 86400)
    return f"{days:.0f} days" if days > 1 and not rest else duration(seconds)


def _starts_repeated(config: RuleConfig) -> AlertRule:
    window = duration(config.objective_window_seconds)
    repeated = f"sum_over_time({REPEATED}{{{_MATCHED}}}[{window}])"
    return _of_class(
        config,
        Alert.REQUEUE_RATE,
        f"""
            {RESTARTS} > {config.repeated_share:g}
            and on ({CLASS})
            sum_over_time({STARTS}[{window}]) >= {config.success_least_attempts:g}
        """,
        severity=Severity.WARNING,
        summary="Many starts of a class of runs are repetitions.",
        description=(
            f"{{{{ $value | {_PERCENT} }}}} of the starts of {_CLASS} in the last "
            f"{_span(config.objective_window_seconds)} were made again by "
            "launcher or scheduler, "
            + value_of(repeated, _OF_CLASS, "some", _COUNT)
            + " in all. Each repeats the start-up and the steps since the last checkpoint. [[Tell "
            "preemptions from failures first]]."
        ),
    )


def _of_class(
    config: RuleConfig, alert: Alert, expression: str, *, severity: Severity, summary: str, description: str
) -> AlertRule:
    return alert_rule(
        config,
        alert,
        expression,
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        summary=summary,
        description=description,
        of_run=False,
        dashboard=_BOARD,
    )
