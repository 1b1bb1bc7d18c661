"""Causes that name no rank: a slow stage, slow data loading, jitter.

They are tickets that wait for ten minutes, so what reads each node for them is evaluated once a minute: their
estimates. What alerts and stragglers go by are copies of these.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.costs import of_high
from rankwatch_alerts.recording.steps import STEP, estimate, median_of_stage, recent
from rankwatch_alerts.recording.unequal_batches import UNEQUAL_BATCHES, WAITING
from rankwatch_alerts.rules import RUN, STAGE, RecordingRule, recorded

LATE_IN_TURN = "rank:rankwatch_late_step_seconds:in_turn"
"""Of the few ranks that stand out."""
SLOW_STAGE = "stage:rankwatch_slow_stage:slowdown"
SLOW_DATA_LOADING = "run:rankwatch_slow_data_loading:share"
JITTER = "run:rankwatch_jitter:share"
_SHARE = "run:rankwatch_late_step_seconds:share"
_IN_TURN = "run:rankwatch_late_step_seconds:in_turn_share"
_LONG = "run:rankwatch_late_step_seconds:long_sum"
_OWN = "node:rankwatch_late_step_seconds:own"
"""Nodes with a rank that holds most of the lateness of its run."""


def cause_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The causes as alerts count them, and the late steps of the few ranks that stand out."""
    causes = (SLOW_STAGE, UNEQUAL_BATCHES, JITTER, SLOW_DATA_LOADING)
    return (
        recorded("run:rankwatch_stages:count", "count by (cluster, run) (stage:rankwatch_ranks:count)"),
        *(recorded(each, estimate(each)) for each in causes),
        recorded(
            LATE_IN_TURN,
            f"""
                ({of_high(config, "late_step_long_seconds")} > 0)
                <= on ({RUN}) group_left ()
                ({config.jitter_rank_share:g} * {_LONG})
            """,
        ),
    )


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
            median_of_stage(config, "compute_seconds"),
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
        estimate(SLOW_STAGE),
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
              min by ({STAGE}) ({recent(config, "stage_least_compute_seconds")})
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
    share = recent(config, "stage_data_wait_ratio")
    return (
        recorded(
            estimate(SLOW_DATA_LOADING),
            f"""
                max by (cluster, run) (
                  quantile by ({STAGE}) (0.5, {share})
                  and on ({STAGE})
                  (
                    count by ({STAGE}) ({share} > {config.data_loading_share:g})
                    > on ({STAGE})
                    0.5 * count by ({STAGE}) ({share})
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
    return (
        recorded(
            _SHARE,
            f"""
                sum by ({RUN}) ({_of_node(config, "late_step_seconds")})
                / on ({RUN})
                ({STEP} > 0)
            """,
        ),
        recorded(
            _LONG,
            # A window of long steps holds few late ones, and the longest of few often dominates: how they
            # spread over the ranks is judged over twice that time.
            f"sum by ({RUN}) ({_of_node(config, 'late_step_long_seconds')})",
        ),
        recorded(
            _OWN,
            # Late steps of a rank that holds most of the lateness are its own, and do not hide the others.
            f"""
                {_of_node(config, "most_late_step_long_seconds")}
                > on ({RUN}) group_left ()
                ({config.jitter_rank_share:g} * {_LONG})
            """,
        ),
        recorded(
            _IN_TURN,
            f"""
                {_SHARE}
                - on ({RUN})
                sum by ({RUN}) ({_of_node(config, "most_late_step_seconds")} and on ({RUN}, node) {_OWN})
                / on ({RUN})
                ({STEP} > 0)
                or
                {_SHARE}
            """,
        ),
        _jitter_rule(config),
    )


def _jitter_rule(config: RuleConfig) -> RecordingRule:
    """What late steps in turn cost, unless unequal batches explain them: long ones make late steps."""
    return recorded(
        estimate(JITTER),
        f"""
            (
              {_IN_TURN}
              < on ({RUN})
              {WAITING}
              or
              {WAITING}
              and on ({RUN})
              {_IN_TURN}
            )
            > {config.cause_cost:g}
            and on ({RUN})
            (
              sum by ({RUN}) ({_of_node(config, "late_ranks")})
              >= on ({RUN})
              (count by ({RUN}) ({_OWN}) or on ({RUN}) 0 * {_SHARE}) + {config.jitter_ranks}
            )
            and on ({RUN})
            (
              max by ({RUN}) (
                {_of_node(config, "most_late_step_long_seconds")}
                unless on ({RUN}, node)
                {_OWN}
                or
                {_of_node(config, "second_late_step_long_seconds")}
                and on ({RUN}, node)
                {_OWN}
              )
              <= on ({RUN})
              ({config.jitter_rank_share:g} * ({_LONG} - on ({RUN}) sum by ({RUN}) ({_OWN}) or {_LONG}))
            )
            unless on ({RUN})
            {estimate(UNEQUAL_BATCHES)}
        """,
    )


def _of_node(config: RuleConfig, name: str) -> str:
    """What agents say of the late steps of a run; once of each node, where an agent has just moved."""
    return f"max by ({RUN}, node) ({recent(config, f'run_{name}')})"
