"""Alerts on a run that stands still or lost a rank.

Step time is common to all ranks, so a stall is the run's: the latest progress of any rank counts. The timeout
is learnt from the run's own history, so a checkpoint or an evaluation is no stall.
"""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RANK, OF_RUN, alert_rule, listed, looked_up, matching
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.stall_causes import MISMATCHED, ROOT_CAUSE
from rankwatch_alerts.rules import RANK_KNOWN, RANK_UNKNOWN, Alert, AlertRule, Severity

_OF_RUN, _OF_RANK = matching(OF_RUN), matching(OF_RANK)
_LOST = "The process of a rank ended without reporting an end."
_WAITED = "rank:rankwatch_stall_waited:bool"
_STALLED = "Run {{ $labels.run }} has made no progress for {{ $value | humanizeDuration }}"
_THIS_RANK = "Rank {{ $labels.rank }} on node {{ $labels.node }}"
_DESYNCHRONISED = f"{_STALLED}: every rank waits in a collective, but not all in the same one. "
_WHY = (
    '{{ with (. | first).Labels.reason }}{{ if eq . "disappeared" }}is gone'
    '{{ else if eq . "not_enqueued" }}has not enqueued the collective in which its peers wait'
    '{{ else if eq . "unresponsive" }}does not answer while its peers do'
    "{{ else }}is in no collective while its peers are{{ end }}{{ end }}"
)


def run_stalled(config: RuleConfig) -> tuple[AlertRule, ...]:
    """No rank makes progress: one alert for each rank that the run waits for, or one without a rank."""
    few = f"(count by (cluster, run) ({ROOT_CAUSE}) <= {config.stall_most_named_ranks:g})"
    named = f"""
        run:rankwatch_stall_seconds:max
        * on (cluster, run) group_right ()
        max by (cluster, run, rank, node) ({ROOT_CAUSE})
        and on (cluster, run)
        {few}
    """
    unnamed = f"""
        run:rankwatch_stall_seconds:max
        unless on (cluster, run)
        {few}
        unless on (cluster, run)
        run:rankwatch_collectives_desynchronised:bool
    """
    return _stall(
        config,
        Alert.RUN_STALLED,
        "No rank of a running run makes progress.",
        rank_known=(named, _describe_stall_of_rank()),
        rank_unknown=(unnamed, _describe_stall()),
    )


def collectives_desynchronised(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Every rank waits in a collective, but not in the same one.

    One alert for each rank that differs from the majority of its group; one without a rank where there is
    no majority, or where too many ranks differ.
    """
    few = (
        f"(count by (cluster, run) (group by (cluster, run, rank, node) ({MISMATCHED}))"
        f" <= {config.stall_most_named_ranks:g})"
    )
    named = f"""
        run:rankwatch_stall_seconds:max
        * on (cluster, run) group_right ()
        max by (cluster, run, rank, node) ({MISMATCHED})
        and on (cluster, run)
        {few}
    """
    unnamed = f"""
        run:rankwatch_stall_seconds:max
        and on (cluster, run)
        run:rankwatch_collectives_desynchronised:bool
        unless on (cluster, run)
        {few}
    """
    return _stall(
        config,
        Alert.COLLECTIVES_DESYNCHRONISED,
        "The ranks of a run call different collectives and wait for each other.",
        rank_known=(named, _describe_mismatch_of_rank()),
        rank_unknown=(unnamed, _describe_mismatch()),
    )


def rank_lost(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert for each lost rank, and one without a rank for those that were ended because the run stood.

    Silent once the rank runs again, here or on another node, and once all running ranks started after its
    end: else what an agent keeps of an earlier attempt would hold back the stalls of the present one.
    """
    lost = f"""
        max by (cluster, run, rank, node) (rankwatch_rank_state{{state="lost"}}) == 1
        unless on (cluster, run, rank)
        (rank:rankwatch_rank_running:bool == 1)
        unless on (cluster, run, rank, node)
        {_WAITED}
        unless on (cluster, run, rank, node)
        (
          max by (cluster, run, rank, node) (rankwatch_rank_heartbeat_timestamp_seconds)
          < on (cluster, run) group_left ()
          run:rankwatch_rank_start_timestamp_seconds:min
        )
    """
    return (
        alert_rule(
            config,
            Alert.RANK_LOST,
            lost,
            for_seconds=config.confirm_seconds,
            keep_firing_seconds=config.stall_keep_firing_seconds,
            severity=Severity.CRITICAL,
            summary=_LOST,
            description=(
                "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} is gone: "
                "its process ended without reporting an end, as after SIGKILL, the OOM killer or a "
                "segmentation fault. Read its black box and the kernel log of the node before "
                "restarting the run."
            ),
        ),
        _ended_while_waiting(config),
    )


def _ended_while_waiting(config: RuleConfig) -> AlertRule:
    """The victims of a stall, aborted by a watchdog, thousands at a time.

    The alert on the stall has named the rank they waited for. Without this alert its end would look healthy.
    """
    victims = f"""
        count by (cluster, run) (
          {_WAITED}
          and on (cluster, run, rank, node)
          (rankwatch_rank_state{{state="lost"}} == 1)
          unless on (cluster, run, rank)
          (rank:rankwatch_rank_running:bool == 1)
        )
        unless on (cluster, run)
        run:rankwatch_rank_start_timestamp_seconds:min
    """
    return alert_rule(
        config,
        Alert.RANK_LOST,
        victims,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.stall_keep_firing_seconds,
        severity=Severity.CRITICAL,
        labels={"reason": "waited"},
        summary=_LOST,
        description=(
            "Run {{ $labels.run }} stood still, and none of its ranks runs any more: {{ $value }} ended "
            "without reporting an end while they waited for others, for example by the watchdog of NCCL. "
            "They are not the root cause: see which rank the alert on the stall named before."
        ),
    )


def _stall(
    config: RuleConfig,
    alert: Alert,
    summary: str,
    *,
    rank_known: tuple[str, str],
    rank_unknown: tuple[str, str],
) -> tuple[AlertRule, ...]:
    """The alert that names a rank, and the one that names none; each an expression and a description.

    The latter waits twice as long, so that evidence which arrives late does not cause two notifications
    of one stall.
    """
    return tuple(
        alert_rule(
            config,
            alert,
            expression,
            for_seconds=for_seconds,
            keep_firing_seconds=config.stall_keep_firing_seconds,
            severity=Severity.CRITICAL,
            labels={"reason": reason},
            summary=summary,
            description=description,
        )
        for reason, (expression, description), for_seconds in (
            (RANK_KNOWN, rank_known, config.stall_for_seconds),
            (RANK_UNKNOWN, rank_unknown, 2 * config.stall_for_seconds),
        )
    )


def _describe_stall_of_rank() -> str:
    why = looked_up(f"{ROOT_CAUSE}{_OF_RANK}", OF_RANK, _WHY, "holds up its peers")
    phase = looked_up(
        f"rankwatch_rank_phase_start_timestamp_seconds{_OF_RANK}",
        OF_RANK,
        "{{ (. | first).Labels.phase }}",
        "not known",
    )
    group = looked_up(
        f"rank_group:rankwatch_collectives_behind:stalled{_OF_RANK}",
        OF_RANK,
        "{{ with . | first }}{{ .Labels.group }} (ranks {{ .Labels.members }}){{ end }}",
        "not known",
        by="group",
    )
    return (
        f"{_STALLED}, longer than is normal for it. {_THIS_RANK} holds it up: it {why}. Its phase: {phase}. "
        f"Process group in which its peers wait for it: {group}. Dump the stack of this rank first; if that "
        "fails, check its node."
    )


def _describe_stall() -> str:
    phases = listed(
        f"count by (phase) (rankwatch_rank_phase_start_timestamp_seconds{_OF_RUN})",
        OF_RUN,
        "{{ $series.Value }} in {{ $series.Labels.phase }}",
        "in no phase",
        by="phase",
    )
    outside = listed(
        "bottomk(5, rankwatch_rank_phase_start_timestamp_seconds"
        '{cluster=%q, run=%q, phase!="communication"} unless on (cluster, run, rank, node) '
        "rank:rankwatch_stall_waiting_timestamp_seconds:min)",
        OF_RUN,
        "{{ $series.Labels.rank }} ({{ $series.Labels.phase }}, node {{ $series.Labels.node }})",
        "none",
    )
    return (
        f"{_STALLED}, longer than is normal for it. Its ranks are: {phases}. Ranks that wait in no "
        f"collective: {outside}. Dump the stacks of these first; if that fails, check their nodes."
    )


def _describe_mismatch_of_rank() -> str:
    how = looked_up(
        f"{MISMATCHED}{_OF_RANK}",
        OF_RANK,
        '{{ with . | first }}{{ if eq .Labels.reason "operation" }}calls another operation than'
        "{{ else }}has enqueued another number of collectives than{{ end }} most ranks of process group "
        "{{ .Labels.group }} (ranks {{ .Labels.members }}){{ end }}",
        "differs from its peers",
        by="group",
    )
    return (
        f"{_DESYNCHRONISED}{_THIS_RANK} {how}. Compare its stack with that of a peer: the code path that "
        "only this rank took is the fault."
    )


def _describe_mismatch() -> str:
    groups = listed(
        "topk(5, group by (group, members) ("
        f"rank_group:rankwatch_collective_oldest_incomplete_signature:stalled{_OF_RUN}))",
        OF_RUN,
        "{{ $series.Labels.group }} (ranks {{ $series.Labels.members }})",
        "not known",
    )
    return (
        f"{_DESYNCHRONISED}No majority shows which ranks are wrong. Process groups in which they wait: "
        f"{groups}. Compare the stacks of the ranks of one group."
    )
