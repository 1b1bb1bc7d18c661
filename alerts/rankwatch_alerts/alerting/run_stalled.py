"""RankwatchRunStalled: no rank of a running run makes progress; with the ranks it waits for, where known."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import listed, looked_up
from rankwatch_alerts.alerting.stall_pair import OF_RANK, RANK_MATCHERS, Told, stall_pair
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule

_WHY = (
    '{{ with (. | first).Labels.reason }}{{ if eq . "gone" }}is gone{{ else if eq . "awaited" }}'
    'has not enqueued what its peers wait in{{ else if eq . "silent" }}does not answer while its peers do'
    "{{ else }}is in no collective while the others are{{ end }}{{ end }}"
)


def run_stalled(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Step time is common to all ranks, so a stall is the run's: the latest progress of any rank counts.

    The timeout is learnt from the run's own history, so that a checkpoint or an evaluation is none. One
    alert for each rank the run waits for; one without a rank where nobody can be named.
    """
    few = f"(count by (cluster, run) (rank:rankwatch_stall_culprit:bool) <= {config.stall_culprits_most:g})"
    named = promql(f"""
        run:rankwatch_stall_seconds:max
        * on (cluster, run) group_right ()
        max by (cluster, run, rank, node) (rank:rankwatch_stall_culprit:bool)
        and on (cluster, run)
        {few}
    """)
    unnamed = promql(f"""
        run:rankwatch_stall_seconds:max
        unless on (cluster, run)
        {few}
        unless on (cluster, run)
        run:rankwatch_collectives_desynchronised:bool
    """)
    return stall_pair(
        config,
        Alert.RUN_STALLED,
        summary="No rank of a running run makes progress.",
        rank_known=Told(expression=named, description=_of_the_rank()),
        rank_unknown=Told(expression=unnamed, description=_of_the_run()),
    )


def _of_the_rank() -> str:
    why = looked_up(
        f"rank:rankwatch_stall_culprit:bool{RANK_MATCHERS}", OF_RANK, _WHY, "is what it waits for"
    )
    phase = looked_up(
        f"rankwatch_rank_phase_start_timestamp_seconds{RANK_MATCHERS}",
        OF_RANK,
        "{{ (. | first).Labels.phase }}",
        "not known",
    )
    group = looked_up(
        f"rank_group:rankwatch_collectives_behind:stalled{RANK_MATCHERS}",
        OF_RANK,
        "{{ with . | first }}{{ .Labels.group }} (ranks {{ .Labels.members }}){{ end }}",
        "not known",
        by="group",
    )
    return (
        "Run {{ $labels.run }} has made no progress for {{ $value | humanizeDuration }}, longer than is "
        f"normal for it: rank {{{{ $labels.rank }}}} on node {{{{ $labels.node }}}} {why}. Its phase: "
        f"{phase}. The process group in which its peers wait for it: {group}. Dump the stack of this rank "
        "first; a rank that cannot be dumped is a finding."
    )


def _of_the_run() -> str:
    phases = listed(
        "count by (phase) (rankwatch_rank_phase_start_timestamp_seconds{cluster=%q, run=%q})",
        ("cluster", "run"),
        "{{ $series.Value }} in {{ $series.Labels.phase }}",
        "in no phase",
        by="phase",
    )
    outside = listed(
        "bottomk(5, rankwatch_rank_phase_start_timestamp_seconds"
        '{cluster=%q, run=%q, phase!="communication"} unless on (cluster, run, rank, node) '
        "rank:rankwatch_stall_waiting_timestamp_seconds:min)",
        ("cluster", "run"),
        "{{ $series.Labels.rank }} ({{ $series.Labels.phase }}, node {{ $series.Labels.node }})",
        "none",
    )
    return (
        "Run {{ $labels.run }} has made no progress for {{ $value | humanizeDuration }}, longer "
        f"than is normal for it. Its ranks are: {phases}. Ranks not waiting in a collective: "
        f"{outside}. Dump the stacks of these first; a rank that cannot be dumped is a finding."
    )
