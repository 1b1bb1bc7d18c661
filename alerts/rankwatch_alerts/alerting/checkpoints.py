"""Alerts on work that a run could lose."""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import (
    OF_RANK,
    OF_RUN,
    alert_rule,
    looked_up,
    matching,
    opened_on,
    value_of,
)
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.checkpoints import COMPLETE, COMPLETE_STEP, WRITE_MEDIAN, WRITE_SKEW
from rankwatch_alerts.recording.goodput import BLOCKED_SHARE, SAVE_BEFORE, SAVE_NOW
from rankwatch_alerts.recording.hardware import CHECKPOINT_SPACE
from rankwatch_alerts.rules import CHECKPOINTS_GOODPUT_UID, RUN, Alert, AlertRule, Severity, duration, lately

_DASHBOARD = opened_on(CHECKPOINTS_GOODPUT_UID, *OF_RUN)
_ERROR = "rankwatch_checkpoint_last_failure_info"
_NAMED = "exception, message, path"


def checkpoint_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All of them."""
    return (
        checkpoint_failed(config),
        checkpoint_damaged(config),
        checkpoint_stale(config),
        checkpoint_overlap(config),
        checkpoint_writer_slow(config),
        *checkpoint_slow(config),
        *checkpoint_space_short(config),
        resume_failed(config),
        resumed_from_older(config),
    )


def checkpoint_failed(config: RuleConfig) -> AlertRule:
    """A warning: work is at risk only once the last good checkpoint is old, which has its own alert."""
    failed = 'rankwatch_checkpoint_last_failure_timestamp_seconds{operation=~"save|verify|upload"}'
    window = duration(config.event_window_seconds)
    of_operation = (*OF_RANK, "operation")
    failures = f"rankwatch_checkpoint_stage_failures_total{matching(of_operation)}"
    stage = looked_up(
        # A counter that is born at 1 has no increase: the first save of a run fails.
        f"topk(1, sum by (checkpoint_stage) (increase({failures}[{window}])) > 0 "
        f"or on () sum by (checkpoint_stage) ({failures}) > 0)",
        of_operation * 2,
        '{{ . | first | label "checkpoint_stage" }}',
        "not known",
    )
    error = _error(f"{_ERROR}{matching(of_operation)}", of_operation)
    return alert_rule(
        config,
        Alert.CHECKPOINT_FAILED,
        f"""
            group by (cluster, run, rank, node, operation) (
              {lately(failed, config.event_window_seconds)}
            )
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A checkpoint could not be saved or uploaded, or did not verify.",
        description=(
            "Checkpoint {{ $labels.operation }} failed on rank {{ $labels.rank }} of run "
            "{{ $labels.run }} on node {{ $labels.node }} in the last "
            f"{window}; stage that fails most on it: {stage}.{error} "
            "[[Check space and mount of the checkpoint path]] on that node, and that an older good "
            "checkpoint is kept."
        ),
    )


def _error(series: str, labels: tuple[str, ...]) -> str:
    """A sentence with the newest error that is known, else nothing."""
    return looked_up(
        f"topk(1, group by ({_NAMED}) ({series}))",
        labels,
        "{{ with (. | first).Labels }} Error{{ if .path }} at {{ .path }}{{ end }}: {{ .exception }}"
        "{{ if and .exception .message }}: {{ end }}{{ .message }}.{{ end }}",
        "",
    )


def checkpoint_stale(config: RuleConfig) -> AlertRule:
    """A running run could lose more work than its budget.

    One that has never saved speaks only if it declares an interval, and counts from its start.
    """
    budget = value_of(
        f"run:rankwatch_checkpoint_age_budget_seconds:max{matching(OF_RUN)}",
        OF_RUN,
        "not known",
        "humanizeDuration",
    )
    return alert_rule(
        config,
        Alert.CHECKPOINT_STALE,
        """
            time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max
            > on (cluster, run)
            run:rankwatch_checkpoint_age_budget_seconds:max
            and
            run:rankwatch_ranks_running:sum > 0
        """,
        for_seconds=config.checkpoint_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="The last good checkpoint of a running run is older than its budget.",
        description=(
            "Run {{ $labels.run }} would lose {{ $value | humanizeDuration }} of work if it "
            f"stopped now; the budget is {budget}. [[Check whether it saves at all]], and whether its saves "
            "fail or do not verify."
        ),
    )


def checkpoint_overlap(config: RuleConfig) -> AlertRule:
    """Saves in the background take longer than the time between two of them."""
    window = duration(config.checkpoint_overlap_window_seconds)
    return alert_rule(
        config,
        Alert.CHECKPOINT_OVERLAP,
        # Half below the number, because `increase` extrapolates.
        f"""
            max by ({RUN}) (increase(rankwatch_checkpoint_saves_overlapped_total[{window}]))
            > {config.checkpoint_overlaps - 0.5:g}
            and on ({RUN})
            run:rankwatch_ranks_running:sum > 0
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="Saves are not finished when the next one begins.",
        description=(
            "In run {{ $labels.run }}, "
            f'{{{{ $value | printf "%.0f" }}}} saves in the last {window} began while the one before was not '
            "finished. Training waits for it, or a new save is at the mercy of two. [[Save less often, or "
            "make saves faster]]: find the slowest stage and writer."
        ),
        dashboard=_DASHBOARD,
    )


def checkpoint_writer_slow(config: RuleConfig) -> AlertRule:
    """One rank holds up the save of all."""
    excess = config.checkpoint_write_factor - 1
    size = value_of(f"rankwatch_checkpoint_bytes{matching(OF_RANK)}", OF_RANK, "unknown size", "humanize1024")
    usual = value_of(
        f"quantile(0.5, rankwatch_checkpoint_bytes{matching(OF_RUN)})", OF_RUN, "unknown", "humanize1024"
    )
    median = value_of(f"{WRITE_MEDIAN}{matching(OF_RUN)}", OF_RUN, "not known", "humanizeDuration")
    return alert_rule(
        config,
        Alert.CHECKPOINT_WRITER_SLOW,
        f"""
            {WRITE_SKEW}
            > on ({RUN}) group_left ()
            clamp_min({excess:g} * {WRITE_MEDIAN}, {config.checkpoint_write_skew_seconds:g})
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="One rank writes its part of the checkpoint much more slowly than the others.",
        description=(
            "In the last save of run {{ $labels.run }}, rank {{ $labels.rank }} on node {{ $labels.node }} "
            f"wrote for {{{{ $value | humanizeDuration }}}} longer than the median rank ({median}). It wrote "
            f"{size}B, the median rank {usual}B. If it wrote as much as the others, [[check the storage "
            "and the network of that node]]; else balance the parts."
        ),
        dashboard=_DASHBOARD,
    )


def checkpoint_slow(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Tickets: nothing is lost, but each save costs more than it did, or than it should."""
    window = duration(config.checkpoint_slow_window_seconds)
    before = value_of(f"{SAVE_BEFORE}{matching(OF_RUN)}", OF_RUN, "not known", "humanizeDuration")
    blocked = value_of(f"{BLOCKED_SHARE}{matching(OF_RUN)}", OF_RUN, "an unknown share", "humanizePercentage")
    now = value_of(f"{SAVE_NOW}{matching(OF_RUN)}", OF_RUN, "not known", "humanizeDuration")
    return (
        _checkpoint_slow(
            config,
            "own_past",
            f"""
                {SAVE_NOW}
                > on ({RUN})
                {config.checkpoint_slow_factor:g} * {SAVE_BEFORE}
                and on ({RUN})
                {SAVE_NOW} - on ({RUN}) {SAVE_BEFORE} > {config.checkpoint_slow_seconds:g}
            """,
            f"Saves of run {{{{ $labels.run }}}} took {{{{ $value | humanizeDuration }}}} on average in the "
            f"last {window}, and {before} before. They block training for {blocked} of the time. [[Find the "
            "stage that grew]]: writing points at the storage, copying at the nodes, waiting at one slow "
            "rank.",
        ),
        _checkpoint_slow(
            config,
            "blocking",
            f"{BLOCKED_SHARE} > {config.checkpoint_blocking_share:g}",
            f"Saves block run {{{{ $labels.run }}}} for {{{{ $value | humanizePercentage }}}} of its time, "
            f"{now} each on average in the last {window}. [[Save in the background]], or look which interval "
            "the dashboard advises.",
        ),
    )


def _checkpoint_slow(config: RuleConfig, reason: str, expression: str, description: str) -> AlertRule:
    return alert_rule(
        config,
        Alert.CHECKPOINT_SLOW,
        expression,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        labels={"reason": reason},
        summary="Saves of checkpoints take too long.",
        description=description,
        dashboard=_DASHBOARD,
    )


def checkpoint_space_short(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A page if the next save fails for lack of space, else a ticket: nothing fails today."""
    return (
        _space(
            config,
            f"{CHECKPOINT_SPACE} < 1",
            Severity.CRITICAL,
            "The next save fails, and all work since the last one is at risk. [[Make room now: delete old "
            "checkpoints]], and keep the last good one.",
        ),
        _space(
            config,
            f"{CHECKPOINT_SPACE} >= 1 < {config.checkpoint_space:g}",
            Severity.WARNING,
            "[[Delete old checkpoints, or keep fewer of them]].",
        ),
    )


def _space(config: RuleConfig, expression: str, severity: Severity, first: str) -> AlertRule:
    of_path = ("cluster", "path")
    unknown = "an unknown number of "
    free = value_of(
        f"min(rankwatch_filesystem_available_bytes{matching(of_path)})", of_path, unknown, "humanize1024"
    )
    size = value_of(f"sum(rankwatch_checkpoint_bytes{matching(OF_RUN)})", OF_RUN, unknown, "humanize1024")
    return alert_rule(
        config,
        Alert.CHECKPOINT_SPACE_SHORT,
        expression,
        for_seconds=config.absence_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        summary="There is no room for two more checkpoints.",
        description=(
            'Path {{ $labels.path }} has room for {{ $value | printf "%.1f" }} more checkpoints of run '
            f"{{{{ $labels.run }}}}: {free}B are free, and its last one has {size}B. {first}"
        ),
        dashboard=_DASHBOARD,
    )


def resume_failed(config: RuleConfig) -> AlertRule:
    """Critical: a run that cannot load stands still or starts from nothing, and a restart repeats it."""
    window = duration(config.event_window_seconds)
    failed = 'rankwatch_checkpoint_last_failure_timestamp_seconds{operation="load"}'
    such_as = looked_up(
        "topk(1, max by (rank, node) (rankwatch_checkpoint_last_failure_timestamp_seconds"
        '{operation="load", cluster=%q, run=%q}))',
        OF_RUN,
        "{{ with . | first }}, such as rank {{ .Labels.rank }} on node {{ .Labels.node }}{{ end }}",
        "",
    )
    error = _error(_ERROR + '{operation="load", cluster=%q, run=%q}', OF_RUN)
    return alert_rule(
        config,
        Alert.RESUME_FAILED,
        f"""
            count by ({RUN}) (
              max by ({RUN}, rank, node) {lately(failed, config.event_window_seconds)}
            )
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="A run could not load its checkpoint.",
        description=(
            "{{ $value }} rank(s) of run {{ $labels.run }} could not load a checkpoint in the last "
            f"{window}{such_as}.{error} The run stands still, or starts from nothing. Before it is started "
            "again, [[keep all its checkpoints]], and find one that loads: `rankwatch checkpoint newest`."
        ),
        dashboard=_DASHBOARD,
    )


def resumed_from_older(config: RuleConfig) -> AlertRule:
    """The run does work again that a newer checkpoint holds."""
    complete = value_of(f"{COMPLETE_STEP}{matching(OF_RUN)}", OF_RUN, "unknown", 'printf "%.0f"')
    return alert_rule(
        config,
        Alert.RESUMED_FROM_OLDER,
        # A difference of one may be a matter of counting. The attempt began after that checkpoint.
        f"""
            max by ({RUN}) (rankwatch_node_restored_step)
            < on ({RUN})
            {COMPLETE_STEP} - 1
            and on ({RUN})
            run:rankwatch_rank_start_timestamp_seconds:min > on ({RUN}) {COMPLETE}
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A run has resumed from an older checkpoint than its newest complete one.",
        description=(
            'Run {{ $labels.run }} has resumed from step {{ $value | printf "%.0f" }}, although its newest '
            f"complete checkpoint is of step {complete}. Unless that is meant, [[find out why the newer one "
            "was passed over]] before the next save or clean-up removes it."
        ),
        dashboard=_DASHBOARD,
    )


def checkpoint_damaged(config: RuleConfig) -> AlertRule:
    """Critical: whoever resumes from it trains on wrong numbers, and nothing else says so."""
    return alert_rule(
        config,
        Alert.CHECKPOINT_DAMAGED,
        """
            max by (cluster, run, node, path, file, tensor, damage) (
              rankwatch_checkpoint_damaged_step
            )
        """,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        summary="A checkpoint on disk is not what was written.",
        description=(
            "Checkpoint {{ $labels.path }} of run {{ $labels.run }}, step {{ $value }}, is damaged or "
            "incomplete: {{ $labels.file }}{{ if $labels.tensor }}, tensor {{ $labels.tensor }}{{ end }} is "
            "{{ $labels.damage }}. [[Do not resume from it]], and keep the good checkpoint before it: "
            "`rankwatch checkpoint newest` names it."
        ),
        dashboard=_DASHBOARD,
    )
