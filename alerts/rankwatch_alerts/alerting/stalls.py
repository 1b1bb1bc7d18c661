"""Alerts on a run that stands still or lost a rank.

Step time is common to all ranks, so a stall is the run's: the latest progress of any rank counts. The timeout
is learnt from the run's own history, so a checkpoint or an evaluation is no stall.
"""

from __future__ import annotations

from rankwatch_alerts.alerting.alert import OF_RANK, OF_RUN, alert_rule, listed, looked_up, matching
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.lost import LOST
from rankwatch_alerts.recording.stall_causes import MISMATCHED, ROOT_CAUSE
from rankwatch_alerts.recording.stall_places import INCOMPLETE
from rankwatch_alerts.rules import (
    KILLED_WHILE_WAITING,
    RANK_KNOWN,
    RANK_UNKNOWN,
    RUN,
    Alert,
    AlertRule,
    Severity,
    duration,
)

_OF_RUN, _OF_RANK = matching(OF_RUN), matching(OF_RANK)
_MOST_LISTED = 16
"""Most ranks in the text of one alert."""
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
    """One alert for each run with lost ranks; its label `reason` tells ranks apart that waited for others.

    Those that were aborted after the timeout of the watchdog are victims: the alert on the stall has named
    the rank they waited for, but without this alert the end of the run would look healthy. Those that ended
    sooner were killed; unless a rank that did not wait is lost too, they do not explain the stall.
    """
    timeout = config.watchdog_timeout_seconds
    killed, aborted = f"< {timeout:g}", f">= {timeout:g}"
    count, first = f"count by (cluster, run) ({LOST} {killed})", f"on (cluster, run) ({LOST} == 0)"
    return (
        _lost(
            config,
            f"{count} and {first}",
            "{{ $value }} rank(s) of run {{ $labels.run }} are gone: their processes ended without reporting "
            "an end, as after SIGKILL, the OOM killer or a segmentation fault. Rank "
            f"{_lost_ranks(killed)}. [[Read the black boxes of these ranks]] and the kernel log of their "
            f"nodes before restarting the run.{_kill()}",
        ),
        _lost(
            config,
            f"{count} unless {first}",
            "{{ $value }} rank(s) of run {{ $labels.run }} are gone: their processes ended without reporting "
            f"an end while they waited for others. Rank {_lost_ranks(killed)}. The watchdog of NCCL waits "
            f"for {duration(timeout)}, so they were killed: [[read the kernel log of their nodes]]. They do "
            "not hold up the run; the alert on the stall names the rank that does.",
            reason=KILLED_WHILE_WAITING,
        ),
        _lost(
            config,
            f"""
                count by (cluster, run) ({LOST} {aborted})
                unless on (cluster, run)
                run:rankwatch_rank_start_timestamp_seconds:min
            """,
            "Run {{ $labels.run }} stood still, and none of its ranks runs any more: {{ $value }} ended "
            "without reporting an end after they had waited for others as long as the watchdog of NCCL lets "
            f"them. Rank {_lost_ranks(aborted)}. They are not the root cause: [[see which rank the alert on "
            "the stall named before]].",
            reason="waited",
        ),
    )


def _lost(
    config: RuleConfig,
    expression: str,
    description: str,
    *,
    reason: str = "",
) -> AlertRule:
    return alert_rule(
        config,
        Alert.RANK_LOST,
        expression,
        for_seconds=config.confirm_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.CRITICAL,
        labels={"reason": reason} if reason else {},
        summary="Processes of ranks ended without reporting an end.",
        description=description,
    )


def _kill() -> str:
    """The kernel's line, if it has ended the present attempt."""
    end = f"rankwatch_run_attempt_end_timestamp_seconds{matching(OF_RUN)}".removesuffix("}")
    return looked_up(
        f"""topk(1, {end}, kind="host_out_of_memory", exception="SIGKILL"}} """
        f"""> on ({RUN}) group_left () max by ({RUN}) (rankwatch_run_attempt_start_timestamp_seconds))""",
        OF_RUN,
        " Rank {{ (. | first).Labels.rank }} was killed by the kernel: {{ (. | first).Labels.message }}",
        "",
    )


def _lost_ranks(waited: str) -> str:
    """Lost ranks, at most 16 of them: before others those that waited least."""
    return listed(
        f"bottomk({_MOST_LISTED}, {LOST}{_OF_RUN} {waited})",
        OF_RUN,
        "{{ $series.Labels.rank }} (node {{ $series.Labels.node }}"
        "{{ if $series.Value }}, after a wait of {{ $series.Value | humanizeDuration }}{{ end }})",
        "not known any more",
        by="rank",
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
            keep_firing_seconds=config.keep_firing_seconds,
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
    its_group = "{{ with . | first }}{{ .Labels.group }} (ranks {{ .Labels.members }}){{ end }}"
    # A rank may also be stopped inside the collective in which all of its group wait: then it is not behind.
    inside = looked_up(f"bottomk(1, {INCOMPLETE}{_OF_RANK})", OF_RANK, its_group, "not known")
    behind = f"rank_group:rankwatch_collectives_behind:stalled{_OF_RANK}"
    group = looked_up(behind, OF_RANK, its_group, inside, by="group")
    return (
        f"{_STALLED}, longer than is normal for it. {_THIS_RANK} holds it up: it {why}. Its phase: {phase}. "
        f"Process group in which its peers wait for it: {group}. [[Dump the stack of this rank]] first; if "
        "that fails, check its node."
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
        f"collective: {outside}. [[Dump the stacks of these ranks]] first; if that fails, check their nodes."
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
        f"{_DESYNCHRONISED}{_THIS_RANK} {how}. [[Compare its stack with that of a peer]]: the code path that "
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
        f"{groups}. [[Compare the stacks of the ranks of one group]]."
    )
