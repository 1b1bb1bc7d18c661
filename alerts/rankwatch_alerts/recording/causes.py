"""Causes that name no rank: a slow stage, slow data loading, jitter."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import recent
from rankwatch_alerts.rules import RANK, STAGE, RecordingRule, recorded

LATE_IN_TURN = "rank:rankwatch_late_step_seconds:in_turn"


def stage_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Compute by stage, that of the other stages, and the slowdown by a slow stage.

    The replicas of a stage compute the same, and a pipeline goes at the pace of its slowest stage. If every
    rank of one stage computes longer than the other stages do, the partition is to blame, or what these ranks
    share; if only some of its ranks do, the stage is not.
    """
    return (
        recorded(
            "stage:rankwatch_step_compute_seconds:median",
            # The partition does not decide waiting for batches, checkpoints and evaluation.
            f"quantile by ({STAGE}) (0.5, {recent(config, 'step_compute_seconds')})",
        ),
        recorded(
            "run:rankwatch_stages:count",
            "count by (cluster, run) (stage:rankwatch_ranks:count)",
        ),
        recorded(
            "stage:rankwatch_step_compute_seconds:others_median",
            """
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
            """,
        ),
        recorded(
            "stage:rankwatch_step_compute_seconds:ratio",
            f"""
                stage:rankwatch_step_compute_seconds:median
                / on ({STAGE})
                (stage:rankwatch_step_compute_seconds:others_median > 0)
            """,
        ),
        _slow_stage_rule(config),
    )


def _slow_stage_rule(config: RuleConfig) -> RecordingRule:
    """Step time over the step time with the stage at the others' level; nothing for all other stages.

    A slow rank that holds its stage alone looks the same, so each stage needs several ranks. They need not
    be replicas: ranks that share a microbatch work side by side, and each counts for itself.
    """
    median = "stage:rankwatch_step_compute_seconds:median"
    others = "stage:rankwatch_step_compute_seconds:others_median"
    excess = f"({median} - on ({STAGE}) {others})"
    return recorded(
        "stage:rankwatch_slow_stage:slowdown",
        f"""
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
              min by ({STAGE}) ({recent(config, "step_compute_seconds")})
              > on ({STAGE}) ({config.stage_every_rank_ratio:g} * {others})
            )
            and on ({STAGE})
            (
              {excess}
              > on (cluster, run) group_left () ({config.cause_cost:g} * run:rankwatch_step_seconds:mean)
            )
            and on (cluster, run)
            (min by (cluster, run) (stage:rankwatch_ranks:count) >= {config.stage_ranks})
        """,
    )


def data_loading_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Share of the step by rank; by run that of a stage of which most ranks wait for data.

    In a pipeline only some stages load data, so a run is judged by the stage that waits most. A rank that
    holds a stage alone may be at fault itself, so such stages do not count, except in a run of one rank.
    """
    share = recent(config, "data_wait_ratio")
    return (
        recorded(
            "run:rankwatch_slow_data_loading:share",
            f"""
                max by (cluster, run) (
                  quantile by ({STAGE}) (0.5, {share})
                  and on ({STAGE})
                  (
                    count by ({STAGE}) ({share} > {config.data_loading_share:g})
                    > on ({STAGE})
                    0.5 * stage:rankwatch_ranks:count
                  )
                  and on ({STAGE})
                  (
                    stage:rankwatch_ranks:count > 1
                    or on ({STAGE})
                    stage:rankwatch_ranks:count
                    and on (cluster, run)
                    (sum by (cluster, run) (stage:rankwatch_ranks:count) == 1)
                  )
                )
                > {config.data_loading_share:g}
            """,
        ),
    )


def jitter_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Time of late steps by rank, and by run where it is spread over many ranks.

    A late rank holds up all others, so the run loses the sum over the ranks, as long as no two are late
    in the same step. It cannot lose more than the time its ranks wait. A rank that holds most of the lateness
    is at fault itself; the others are judged without it.
    """
    late, long_mean = recent(config, "late_step_seconds"), recent(config, "late_step_long_seconds")
    return (
        recorded(
            "run:rankwatch_late_step_seconds:share",
            f"""
                sum by (cluster, run) ({late})
                / on (cluster, run)
                (run:rankwatch_step_seconds:mean > 0)
            """,
        ),
        recorded(
            LATE_IN_TURN,
            # Late steps of a rank that holds most of the lateness are its own, and do not hide the others.
            # A window of long steps holds few late ones, and the longest of few often dominates: how they
            # spread over the ranks is judged over twice that time.
            f"""
                max by ({RANK}, stage) (
                  ({long_mean} > 0)
                  <= on (cluster, run) group_left ()
                  ({config.jitter_rank_share:g} * sum by (cluster, run) ({long_mean}))
                )
            """,
        ),
        _jitter_rule(config, late),
    )


def _jitter_rule(config: RuleConfig, late: str) -> RecordingRule:
    """What late steps in turn cost, unless unequal batches explain them: long ones make late steps."""
    in_turn = f"""
        sum by (cluster, run) ({late} and on ({RANK}) {LATE_IN_TURN})
        / on (cluster, run)
        (run:rankwatch_step_seconds:mean > 0)
    """.strip()
    return recorded(
        "run:rankwatch_jitter:share",
        f"""
            (
              {in_turn}
              < on (cluster, run)
              run:rankwatch_step_waiting:share
              or
              run:rankwatch_step_waiting:share
              and on (cluster, run)
              {in_turn}
            )
            > {config.cause_cost:g}
            and on (cluster, run)
            (count by (cluster, run) ({LATE_IN_TURN}) >= {config.jitter_ranks})
            and on (cluster, run)
            (
              max by (cluster, run) ({LATE_IN_TURN})
              <= on (cluster, run)
              ({config.jitter_rank_share:g} * sum by (cluster, run) ({LATE_IN_TURN}))
            )
            unless on (cluster, run)
            run:rankwatch_unequal_batches:share
        """,
    )
