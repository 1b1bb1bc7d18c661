"""RankwatchCollectivesDesynchronised: every rank waits in a collective, but not in the same one."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import listed, looked_up
from rankwatch_alerts.alerting.stall_pair import OF_RANK, RANK_MATCHERS, Told, stall_pair
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule

_OUT_OF_LINE = "rank_group:rankwatch_collectives_out_of_line:bool"
_STALLED_FOR = (
    "Run {{ $labels.run }} has made no progress for {{ $value | humanizeDuration }}: every rank waits in "
    "a collective, but not all in the same one. "
)


def collectives_desynchronised(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert for each rank that is out of line with the majority of its group; one without a rank where
    there is no majority, or where too many are.
    """
    few = (
        f"(count by (cluster, run) (group by (cluster, run, rank, node) ({_OUT_OF_LINE}))"
        f" <= {config.stall_culprits_most:g})"
    )
    named = promql(f"""
        run:rankwatch_stall_seconds:max
        * on (cluster, run) group_right ()
        max by (cluster, run, rank, node) ({_OUT_OF_LINE})
        and on (cluster, run)
        {few}
    """)
    unnamed = promql(f"""
        run:rankwatch_stall_seconds:max
        and on (cluster, run)
        run:rankwatch_collectives_desynchronised:bool
        unless on (cluster, run)
        {few}
    """)
    return stall_pair(
        config,
        Alert.COLLECTIVES_DESYNCHRONISED,
        summary="The ranks of a run call different collectives and wait for each other.",
        rank_known=Told(expression=named, description=_of_the_rank()),
        rank_unknown=Told(expression=unnamed, description=_of_the_run()),
    )


def _of_the_rank() -> str:
    how = looked_up(
        f"{_OUT_OF_LINE}{RANK_MATCHERS}",
        OF_RANK,
        '{{ with . | first }}{{ if eq .Labels.reason "operation" }}calls another operation than'
        "{{ else }}has enqueued another number of collectives than{{ end }} most ranks of process group "
        "{{ .Labels.group }} (ranks {{ .Labels.members }}){{ end }}",
        "is out of line",
        by="group",
    )
    return (
        f"{_STALLED_FOR}Rank {{{{ $labels.rank }}}} on node {{{{ $labels.node }}}} {how}. Compare its stack "
        "with that of a peer: the code path that only this rank took is the fault."
    )


def _of_the_run() -> str:
    groups = listed(
        "topk(5, group by (group, members) ("
        "rank_group:rankwatch_collective_oldest_incomplete_signature:stalled{cluster=%q, run=%q}))",
        ("cluster", "run"),
        "{{ $series.Labels.group }} (ranks {{ $series.Labels.members }})",
        "not known",
    )
    return (
        f"{_STALLED_FOR}No majority says which ranks are out of line. Process groups in which they wait: "
        f"{groups}. Compare the stacks of the ranks of one group."
    )
