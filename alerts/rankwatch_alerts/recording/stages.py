"""Which pipeline stage holds more work than the others, on all of its ranks.

The replicas of a stage compute the same, and a pipeline goes at the pace of its slowest stage. Where
every rank of one stage computes longer than the other stages do, the partition is to blame, or what
these ranks share; where only some of its ranks do, the stage is not.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.steps import RANK
from rankwatch_alerts.recording.stragglers import STAGE
from rankwatch_alerts.rules import RecordingRule

_NOT_COMPUTE = "data_wait|checkpoint|evaluation"


def stage_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Compute by stage, that of the other stages, and the slowdown by a stage that is too heavy."""
    window = duration(config.step_window_seconds)
    return (
        RecordingRule(
            record="rank:rankwatch_step_compute_seconds:mean",
            # Waiting for batches, checkpoints and evaluation are no part of the partition.
            expression=promql(f"""
                rank:rankwatch_step_local_seconds:mean
                - on ({RANK}, stage)
                (
                  sum by ({RANK}) (
                    rate(rankwatch_step_phase_seconds_total{{phase=~"{_NOT_COMPUTE}"}}[{window}])
                  )
                  / on ({RANK}) group_left (stage)
                  rank:rankwatch_steps:rate
                )
                or
                rank:rankwatch_step_local_seconds:mean
            """),
        ),
        RecordingRule(
            record="stage:rankwatch_step_compute_seconds:median",
            expression=f"quantile by ({STAGE}) (0.5, rank:rankwatch_step_compute_seconds:mean)",
        ),
        RecordingRule(
            record="run:rankwatch_stages:count",
            expression="count by (cluster, run) (stage:rankwatch_ranks:count)",
        ),
        RecordingRule(
            record="stage:rankwatch_step_compute_seconds:others",
            expression=promql("""
                (
                  sum by (cluster, run) (stage:rankwatch_step_compute_seconds:median)
                  - on (cluster, run) group_right ()
                  stage:rankwatch_step_compute_seconds:median
                )
                and on (cluster, run) (run:rankwatch_stages:count == 2)
                or
                0 * stage:rankwatch_step_compute_seconds:median
                + on (cluster, run) group_left ()
                (
                  quantile by (cluster, run) (0.5, stage:rankwatch_step_compute_seconds:median)
                  and on (cluster, run) (run:rankwatch_stages:count > 2)
                )
            """),
        ),
        RecordingRule(
            record="stage:rankwatch_step_compute_seconds:ratio",
            expression=promql(f"""
                stage:rankwatch_step_compute_seconds:median
                / on ({STAGE})
                (stage:rankwatch_step_compute_seconds:others > 0)
            """),
        ),
        _slow_stage_rule(config),
    )


def _slow_stage_rule(config: RuleConfig) -> RecordingRule:
    """Step time over the step time with the stage at the others' level; nothing for all other stages.

    A slow rank of a stage with one rank looks the same, so each stage needs several. They need not be
    replicas: ranks that share a microbatch work one beside the other, and each counts for itself.
    """
    median = "stage:rankwatch_step_compute_seconds:median"
    excess = f"({median} - on ({STAGE}) stage:rankwatch_step_compute_seconds:others)"
    return RecordingRule(
        record="stage:rankwatch_slow_stage:slowdown",
        expression=promql(f"""
            run:rankwatch_step_seconds:mean
            / on (cluster, run) group_right ()
            (
              run:rankwatch_step_seconds:mean
              - on (cluster, run) group_right ()
              {excess}
            )
            and on ({STAGE})
            (stage:rankwatch_step_compute_seconds:ratio > {config.stage_ratio:g})
            and on ({STAGE})
            (
              min by ({STAGE}) (rank:rankwatch_step_compute_seconds:mean)
              > on ({STAGE}) ({config.stage_every_rank_ratio:g} * stage:rankwatch_step_compute_seconds:others)
            )
            and on ({STAGE})
            (
              {excess}
              > on (cluster, run) group_left () ({config.cause_cost:g} * run:rankwatch_step_seconds:mean)
            )
            and on (cluster, run)
            (min by (cluster, run) (stage:rankwatch_ranks:count) >= {config.stage_cohort_ranks})
        """),
    )
