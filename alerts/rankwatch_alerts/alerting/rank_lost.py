"""RankwatchRankLost: a rank's process is gone and said no goodbye."""

from __future__ import annotations

from rankwatch_alerts.alerting.annotations import alert_annotations
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity

_SUMMARY = "A rank was killed or crashed without saying goodbye."
_WAITED = "rank:rankwatch_stall_waited:bool"


def rank_lost(config: RuleConfig) -> tuple[AlertRule, ...]:
    """One alert for each lost rank, and one without a rank for those that were ended because the run stood.

    Silent once the rank runs again, here or on another node, and once only ranks run that started after its
    end: what an agent keeps of an earlier attempt would else hold back the stalls of the present one.
    """
    return (_of_the_rank(config), _of_the_run(config))


def _of_the_rank(config: RuleConfig) -> AlertRule:
    return AlertRule(
        alert=Alert.RANK_LOST,
        expression=promql(f"""
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
        """),
        for_seconds=config.confirm_seconds,
        severity=Severity.CRITICAL,
        annotations=alert_annotations(
            config,
            Alert.RANK_LOST,
            summary=_SUMMARY,
            description=(
                "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} is gone: "
                "its process ended without reporting an end, as after SIGKILL, the OOM killer or a "
                "segmentation fault. Read its black box and the kernel log of the node before "
                "restarting the run."
            ),
        ),
    )


def _of_the_run(config: RuleConfig) -> AlertRule:
    """The victims of a stall whose ranks a watchdog aborts, thousands at a time: whom they waited for is what
    the alert on the stall has told. Without this one the end of that alert would look like health.
    """
    return AlertRule(
        alert=Alert.RANK_LOST,
        expression=promql(f"""
            count by (cluster, run) (
              {_WAITED}
              and on (cluster, run, rank, node)
              (rankwatch_rank_state{{state="lost"}} == 1)
              unless on (cluster, run, rank)
              (rank:rankwatch_rank_running:bool == 1)
            )
            unless on (cluster, run)
            run:rankwatch_rank_start_timestamp_seconds:min
        """),
        for_seconds=config.confirm_seconds,
        severity=Severity.CRITICAL,
        labels={"reason": "waited"},
        annotations=alert_annotations(
            config,
            Alert.RANK_LOST,
            summary=_SUMMARY,
            description=(
                "Run {{ $labels.run }} stood still, and no rank of it runs any more: {{ $value }} were ended "
                "without reporting an end while they waited for others, as by the watchdog of NCCL. They are "
                "not the cause: see whom the alert on the stall named before."
            ),
        ),
    )
