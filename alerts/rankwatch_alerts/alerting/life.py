"""Alerts on a run that has failed, fails again and again, starts slowly, or will not be done in time."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, looked_up, matching
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.life import (
    DEADLINE_MARGIN,
    FAILED,
    FIRST_STEP,
    STARTED,
    STARTUP,
    TIME_TO_COMPLETE,
)
from rankwatch_alerts.rules import RUN, Alert, AlertRule, Severity, duration

_END = "rankwatch_run_attempt_end_timestamp_seconds"
_OF_ROOT = (*OF_RUN, "node", "kind")


def run_failed(config: RuleConfig) -> AlertRule:
    """The run is over and nobody has started it again. A lost rank has its own alert."""
    message = looked_up(
        f"{_END}{matching(_OF_ROOT)}",
        _OF_ROOT,
        "{{ with (. | first).Labels.message }}: {{ . }}{{ end }}",
        "",
    )
    return alert_rule(
        config,
        Alert.RUN_FAILED,
        f"time() - {FAILED}",
        for_seconds=config.run_failed_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="A run failed, and nothing has started it again.",
        description=(
            "Run {{ $labels.run }} failed {{ $value | humanizeDuration }} ago"
            "{{ with $labels.rank }} on rank {{ . }}{{ end }}, node {{ $labels.node }}, by "
            "{{ $labels.kind }}{{ with $labels.exception }} ({{ . }}){{ end }}"
            f"{message}. The other ranks ended because of it. [[Read its last output]] before the run is "
            "started again."
        ),
    )


def run_crash_looping(config: RuleConfig) -> AlertRule:
    """Restarts hide each failure, and the allocation pays for all of them."""
    return alert_rule(
        config,
        Alert.RUN_CRASH_LOOPING,
        f"max by ({RUN}) (rankwatch_run_attempts_without_progress) >= {config.crash_loop_attempts:g}",
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="A run fails again and again at the same place.",
        description=(
            "{{ $value }} attempts of run {{ $labels.run }} have ended one after the other without a step "
            "that was new. Its restarts repeat the failure: [[look why the last attempt failed]] before it "
            "is started again."
        ),
    )


def preemption_storm(config: RuleConfig) -> AlertRule:
    """Each restart pays the start-up again and repeats steps, so many of them leave no time for progress."""
    window = duration(config.preemption_window_seconds)
    return alert_rule(
        config,
        Alert.PREEMPTION_STORM,
        # Half below the number, because `increase` extrapolates.
        f"""
            sum by (cluster, run_class) (
              increase(rankwatch_run_attempts_total{{outcome="preempted"}}[{window}])
            )
            > {config.preemption_storm - 0.5:g}
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="Runs are preempted again and again.",
        description=(
            '{{ $value | printf "%.0f" }} attempts of runs'
            "{{ with $labels.run_class }} of class {{ . }}{{ end }} were preempted"
            "{{ with $labels.cluster }} in cluster {{ . }}{{ end }} "
            f"in the last {window}. Each restart repeats the start-up and the "
            "steps since the last checkpoint: [[find out who takes the machines]], and save more often until "
            "it ends."
        ),
        of_run=False,
    )


def startup_slow(config: RuleConfig) -> AlertRule:
    """Against the budget, and against the fastest start of the same run. Each restart pays it again."""
    fastest = f"min_over_time({FIRST_STEP}[{duration(config.startup_window_seconds)}])"
    return alert_rule(
        config,
        Alert.STARTUP_SLOW,
        f"""
            (
              {STARTUP} > {config.startup_budget_seconds:g}
              or
              {STARTUP} > {config.startup_least_seconds:g}
              and
              {STARTUP} > {config.startup_factor:g} * {fastest}
            )
            and on ({RUN})
            time() - {STARTED} - {STARTUP} < {config.startup_shown_seconds:g}
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A run takes long to its first step.",
        description=(
            "Run {{ $labels.run }} has taken {{ $value | humanizeDuration }} since the start of its "
            "processes, "
            + looked_up(
                f"{FIRST_STEP}{matching(OF_RUN)}", OF_RUN, "to its first step", "without a first step so far"
            )
            + looked_up(
                f"min_over_time({FIRST_STEP}{matching(OF_RUN)}[{duration(config.startup_window_seconds)}])",
                OF_RUN,
                "; its fastest start took {{ . | first | value | humanizeDuration }}",
                "",
            )
            + ". [[Find its longest part]]: imports, process groups, the restore or compilation. Each "
            "restart repeats it."
        ),
    )


def run_behind_plan(config: RuleConfig) -> AlertRule:
    """Only of runs that declare a deadline and their number of steps."""
    return alert_rule(
        config,
        Alert.RUN_BEHIND_PLAN,
        f"-{DEADLINE_MARGIN} > 0",
        for_seconds=config.behind_plan_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A run will not be done by its deadline.",
        description=(
            "At the pace of the last hours run {{ $labels.run }} will be done "
            "{{ $value | humanizeDuration }} after its deadline, "
            + looked_up(
                f"{TIME_TO_COMPLETE}{matching(OF_RUN)}",
                OF_RUN,
                "in {{ . | first | value | humanizeDuration }}",
                "some time from now",
            )
            + ". [[Look what its time goes to]]: repeated steps, restarts, checkpoints and evaluations are "
            "part of this pace."
        ),
    )
