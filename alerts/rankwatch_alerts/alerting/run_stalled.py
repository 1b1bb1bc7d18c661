"""RankwatchRunStalled: no rank of a running run makes progress."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations, listed
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def run_stalled(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Step time is common to all ranks, so a stall is the run's: the latest progress of any rank counts.

    The timeout is learnt from the run's own history, so that a checkpoint or an evaluation is none.
    """
    phases = listed(
        "count by (phase) (rankwatch_rank_phase_start_timestamp_seconds{cluster=%q, run=%q})",
        ("cluster", "run"),
        "{{ $series.Value }} in {{ $series.Labels.phase }}",
        "in no phase",
        by="phase",
    )
    outside = listed(
        "bottomk(5, rankwatch_rank_phase_start_timestamp_seconds"
        '{cluster=%q, run=%q, phase!="communication"})',
        ("cluster", "run"),
        "{{ $series.Labels.rank }} ({{ $series.Labels.phase }}, node {{ $series.Labels.node }})",
        "none",
    )
    return (
        AlertRule(
            alert=Alert.RUN_STALLED,
            expression=promql("""
                time() - run:rankwatch_progress_timestamp_seconds:max
                > run:rankwatch_progress_timeout_seconds:max
                and
                run:rankwatch_ranks_running:sum > 0
            """),
            for_seconds=config.stall_for_seconds,
            severity=Severity.CRITICAL,
            annotations=alert_annotations(
                config,
                Alert.RUN_STALLED,
                summary="No rank of a running run makes progress.",
                description=(
                    "Run {{ $labels.run }} has made no progress for {{ $value | humanizeDuration }}, longer "
                    f"than is normal for it. Its ranks are: {phases}. Ranks not waiting in a collective: "
                    f"{outside}. Dump the stacks of these first; a rank that cannot be dumped is a finding."
                ),
            ),
        ),
    )
