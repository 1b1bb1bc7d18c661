"""Suspected stragglers: ranks whose own work stands out, for no other cause, and what each costs.

A cause comes before a name: what a whole stage, uneven data or jitter explains names no rank. Time
blocked in collectives, sends and receives is no local time, so neither slow links nor the victims of a
slow rank in a pipeline stand out.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.promql import promql
from rankwatch_alerts.recording.stragglers import OUTSTANDING, STAGE
from rankwatch_alerts.rules import RecordingRule


def suspect_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The slowdown by each rank that fulfils every condition; nothing for all others."""
    return (
        _outstanding_rule(config),
        RecordingRule(
            record="rank:rankwatch_straggler:slowdown",
            # Ranks that share microbatches are late together where these are long. With a suspect in
            # every stage it may be that, unless work says otherwise.
            expression=promql(f"""
                rank:rankwatch_straggler:candidate
                unless on (cluster, run)
                (
                  (
                    count by (cluster, run) (count by ({STAGE}) (rank:rankwatch_straggler:candidate))
                    == on (cluster, run)
                    (run:rankwatch_stages:count > 1)
                  )
                  unless on (cluster, run)
                  rank:rankwatch_step_work:relative
                )
            """),
        ),
    )


def _outstanding_rule(config: RuleConfig) -> RecordingRule:
    """Step time over the step time with the rank at its peers' value, of ranks that stand out.

    Both the raw and the work-adjusted time must stand out: a rank with more tokens is no straggler,
    and neither is one with fewer tokens whose fixed costs make it look slow per token.
    Where the run jitters, the rank must stand out without its late steps. All is asked of the few ranks
    alone whose residual is high: a residual times the median is the work-adjusted excess.
    """
    residual, excess = f"{config.straggler_residual:g}", OUTSTANDING
    return RecordingRule(
        record="rank:rankwatch_straggler:candidate",
        expression=promql(f"""
            1 / (1 - {excess} / rank:rankwatch_step_seconds:mean)
            and
            (
              {excess}
              > on ({STAGE}) group_left () ({residual} * stage:rankwatch_step_local_seconds:median)
            )
            and
            (
              (rank:rankwatch_step_local_seconds:residual > {residual})
              * on ({STAGE}) group_left () stage:rankwatch_step_local_seconds:work_adjusted_median
              > on ({STAGE}) group_left ()
              ({config.straggler_spread_factor:g} * stage:rankwatch_step_local_seconds:work_adjusted_mad)
            )
            and
            (
              {excess}
              > {config.straggler_cost:g} * rank:rankwatch_step_seconds:mean
            )
            and
            (
              ({excess} - rank:rankwatch_late_step_seconds:mean)
              > on ({STAGE}) group_left () ({residual} * stage:rankwatch_step_local_seconds:median)
              or
              {excess}
              unless on (cluster, run)
              run:rankwatch_jitter:share
            )
            and on ({STAGE})
            (stage:rankwatch_ranks:count >= {config.straggler_cohort_ranks})
        """),
    )
