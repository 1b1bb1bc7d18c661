"""How far each rank's local work stands out among ranks that do the same work.

In synchronous training every rank has the step time of the slowest, so step time names nobody. The
time a rank works before it must wait for the others does; it is compared with the median of the
rank's pipeline stage, because stages differ for good reasons. Medians and their absolute deviation
stay put while fewer than half of the ranks are off.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.rules import RecordingRule

STAGE = "cluster, run, stage"
OUTSTANDING = "rank:rankwatch_step_local_seconds:outstanding"


def straggler_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From cohort medians to work-adjusted residuals, and the excess of each rank."""
    return (
        RecordingRule(
            record="stage:rankwatch_step_local_seconds:median",
            expression=f"quantile by ({STAGE}) (0.5, rank:rankwatch_step_local_seconds:mean)",
        ),
        RecordingRule(
            record="stage:rankwatch_ranks:count",
            expression=f"count by ({STAGE}) (rank:rankwatch_step_local_seconds:mean)",
        ),
        *_work_rules(config),
        *_adjusted_rules(),
        RecordingRule(
            record="rank:rankwatch_step_local_seconds:residual",
            expression=promql(f"""
                rank:rankwatch_step_local_seconds:work_adjusted
                / on ({STAGE}) group_left ()
                (stage:rankwatch_step_local_seconds:work_adjusted_median > 0)
                - 1
            """),
        ),
        RecordingRule(
            record="rank:rankwatch_step_local_seconds:excess",
            expression=promql(f"""
                rank:rankwatch_step_local_seconds:mean
                - on ({STAGE}) group_left ()
                stage:rankwatch_step_local_seconds:median
            """),
        ),
        RecordingRule(
            record=OUTSTANDING,
            # What costs several joins is asked of these few.
            expression=promql(f"""
                rank:rankwatch_step_local_seconds:excess
                and
                (rank:rankwatch_step_local_seconds:residual > {config.straggler_residual:g})
            """),
        ),
    )


def _work_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Local time per unit of work, where all ranks of a stage say how much work they did."""
    window = duration(config.step_window_seconds)
    tokens = f'sum by ({RANK}) (rate(rankwatch_work_total{{unit="tokens"}}[{window}]))'
    return (
        RecordingRule(
            record="rank:rankwatch_step_work:mean",
            expression=promql(f"""
                {tokens}
                / on ({RANK}) group_right ()
                rank:rankwatch_steps:rate
                > 0
            """),
        ),
        RecordingRule(
            record="rank:rankwatch_step_work:relative",
            expression=promql(f"""
                rank:rankwatch_step_work:mean
                / on ({STAGE}) group_left ()
                (
                  quantile by ({STAGE}) (0.5, rank:rankwatch_step_work:mean)
                  and on ({STAGE})
                  (count by ({STAGE}) (rank:rankwatch_step_work:mean) == stage:rankwatch_ranks:count)
                )
            """),
        ),
    )


def _adjusted_rules() -> tuple[RecordingRule, ...]:
    """Local time divided by relative work where that is known, its median and its spread."""
    return (
        RecordingRule(
            record="rank:rankwatch_step_local_seconds:work_adjusted",
            expression=promql("""
                rank:rankwatch_step_local_seconds:mean / rank:rankwatch_step_work:relative
                or
                rank:rankwatch_step_local_seconds:mean
            """),
        ),
        RecordingRule(
            record="stage:rankwatch_step_local_seconds:work_adjusted_median",
            expression=f"quantile by ({STAGE}) (0.5, rank:rankwatch_step_local_seconds:work_adjusted)",
        ),
        RecordingRule(
            record="stage:rankwatch_step_local_seconds:work_adjusted_mad",
            expression=promql(f"""
                quantile by ({STAGE}) (
                  0.5,
                  abs(
                    rank:rankwatch_step_local_seconds:work_adjusted
                    - on ({STAGE}) group_left ()
                    stage:rankwatch_step_local_seconds:work_adjusted_median
                  )
                )
            """),
        ),
    )
