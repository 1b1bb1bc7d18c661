"""RankwatchSlowStage: every rank of one pipeline stage computes longer than the other stages do."""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.annotations import alert_annotations, listed, matchers
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import Alert
from rankwatch_alerts.promql import promql
from rankwatch_alerts.rules import AlertRule, Severity


def slow_stage(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A ticket for the planner: the run goes at the pace of this stage.

    A node that holds all ranks of a stage looks the same when it is slow, so the nodes are told.
    """
    of_stage = ("cluster", "run", "stage")
    nodes = listed(
        "topk(5, count by (node) (rank:rankwatch_step_compute_seconds:mean{cluster=%q, run=%q, stage=%q}))",
        of_stage,
        "{{ $series.Labels.node }} ({{ $series.Value }})",
        "not known",
        by="node",
    )
    ratio = (
        "{{ with printf `stage:rankwatch_step_compute_seconds:ratio{cluster=%q, run=%q, stage=%q}` "
        f"{matchers(*of_stage)} | query }}}}"
        '{{ . | first | value | printf "%.2f" }}{{ else }}an unknown number of{{ end }}'
    )
    return (
        AlertRule(
            alert=Alert.SLOW_STAGE,
            expression=promql("""
                max by (cluster, run, stage) (stage:rankwatch_slow_stage:slowdown) > 1
            """),
            for_seconds=config.cause_for_seconds,
            severity=Severity.WARNING,
            annotations=alert_annotations(
                config,
                Alert.SLOW_STAGE,
                summary="One pipeline stage takes longer than the others, on all of its ranks.",
                description=(
                    "The ranks of stage {{ $labels.stage }} of run {{ $labels.run }} compute "
                    f"{ratio} times as long as the other stages, every one of them. The run takes "
                    '{{ $value | printf "%.2f" }} times as long as it would with this stage at their pace. '
                    f"Ranks of the stage by node, at most 5 nodes: {nodes}. On several nodes, give the stage "
                    "fewer layers; on one node alone, look at that node first."
                ),
                cause=Cause.SLOW_STAGE,
                slowdown='{{ $value | printf "%.2f" }}',
            ),
        ),
    )
