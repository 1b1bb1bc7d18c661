"""Stragglers: ranks whose own work takes longer than that of ranks which do the same work.

In synchronous training every rank has the step time of the slowest, so step time names nobody. The time a
rank works before it must wait for the others does. It is compared with the median of the rank's pipeline
stage, because stages differ for good reasons. Medians and their absolute deviation stay put while fewer than
half of the ranks are off.

A cause comes before a name: a rank that a slow stage, unequal batches or jitter explain is no straggler.
Time blocked in collectives, sends and receives is no local time, so neither slow links nor the victims of a
slow rank in a pipeline stand out.
"""

from __future__ import annotations

from rankwatch.conventions import SlowPhase
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RANK, STAGE, RecordingRule, duration, promql, recorded

HIGH_EXCESS = "rank:rankwatch_step_local_seconds:high_excess"
"""Excess of the few ranks whose residual is that of a straggler; expensive joins use only these."""
CANDIDATE = "rank:rankwatch_straggler_candidate:slowdown"
STRAGGLER = "rank:rankwatch_straggler:slowdown"
COSTLY = "rank:rankwatch_straggler_costly:slowdown"


def residual_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From medians of the stages to work-adjusted residuals, and the excess of each rank."""
    return (
        recorded(
            "stage:rankwatch_step_local_seconds:median",
            f"quantile by ({STAGE}) (0.5, rank:rankwatch_step_local_seconds:mean)",
        ),
        recorded(
            "stage:rankwatch_ranks:count",
            f"count by ({STAGE}) (rank:rankwatch_step_local_seconds:mean)",
        ),
        *_work_rules(config),
        *_adjusted_rules(),
        recorded(
            "rank:rankwatch_step_local_seconds:residual",
            f"""
                rank:rankwatch_step_local_seconds:work_adjusted
                / on ({STAGE}) group_left ()
                (stage:rankwatch_step_local_seconds:work_adjusted_median > 0)
                - 1
            """,
        ),
        recorded(
            "rank:rankwatch_step_local_seconds:excess",
            f"""
                rank:rankwatch_step_local_seconds:mean
                - on ({STAGE}) group_left ()
                stage:rankwatch_step_local_seconds:median
            """,
        ),
        recorded(
            HIGH_EXCESS,
            f"""
                rank:rankwatch_step_local_seconds:excess
                and
                (rank:rankwatch_step_local_seconds:residual > {config.straggler_residual:g})
            """,
        ),
    )


def _work_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Work of each rank, relative where all ranks of the stage report it."""
    window = duration(config.step_window_seconds)
    tokens = f'sum by ({RANK}) (rate(rankwatch_work_total{{unit="tokens"}}[{window}]))'
    return (
        recorded(
            "rank:rankwatch_step_work:mean",
            f"""
                {tokens}
                / on ({RANK}) group_right ()
                rank:rankwatch_steps:rate
                > 0
            """,
        ),
        recorded(
            "rank:rankwatch_step_work:relative",
            f"""
                rank:rankwatch_step_work:mean
                / on ({STAGE}) group_left ()
                (
                  quantile by ({STAGE}) (0.5, rank:rankwatch_step_work:mean)
                  and on ({STAGE})
                  (count by ({STAGE}) (rank:rankwatch_step_work:mean) == stage:rankwatch_ranks:count)
                )
            """,
        ),
    )


def _adjusted_rules() -> tuple[RecordingRule, ...]:
    """Local time divided by relative work, where that is known; its median and its spread."""
    return (
        recorded(
            "rank:rankwatch_step_local_seconds:work_adjusted",
            """
                rank:rankwatch_step_local_seconds:mean / rank:rankwatch_step_work:relative
                or
                rank:rankwatch_step_local_seconds:mean
            """,
        ),
        recorded(
            "stage:rankwatch_step_local_seconds:work_adjusted_median",
            f"quantile by ({STAGE}) (0.5, rank:rankwatch_step_local_seconds:work_adjusted)",
        ),
        recorded(
            "stage:rankwatch_step_local_seconds:work_adjusted_mad",
            f"""
                quantile by ({STAGE}) (
                  0.5,
                  abs(
                    rank:rankwatch_step_local_seconds:work_adjusted
                    - on ({STAGE}) group_left ()
                    stage:rankwatch_step_local_seconds:work_adjusted_median
                  )
                )
            """,
        ),
    )


STEP_PHASES: dict[SlowPhase, tuple[str, ...]] = {
    SlowPhase.COMPUTE: ("forward", "backward", "optimizer"),
    SlowPhase.DATA_LOADING: ("data_wait",),
    SlowPhase.CHECKPOINT: ("checkpoint",),
    SlowPhase.OTHER: ("evaluation", "other"),
}
"""Phases of a step by the phase of a slow rank. `communication` is waiting for others and names nobody."""


def phase_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """By phase: mean, excess over the stage's median, and share of the excess of ranks that stand out."""
    cohort = "cluster, run, stage, phase"
    positive = f"(rank_phase:rankwatch_step_local_seconds:excess and on ({RANK}, stage) {HIGH_EXCESS}) > 0"
    return (
        _mean_rule(config),
        recorded(
            "rank_phase:rankwatch_step_local_seconds:excess",
            f"""
                rank_phase:rankwatch_step_local_seconds:mean
                - on ({cohort}) group_left ()
                quantile by ({cohort}) (0.5, rank_phase:rankwatch_step_local_seconds:mean)
            """,
        ),
        recorded(
            "rank_phase:rankwatch_step_local_seconds:excess_share",
            # Only of ranks that stand out: other excess is noise.
            f"""
                ({positive})
                / on ({RANK}, stage) group_left ()
                sum by ({RANK}, stage) ({positive})
            """,
        ),
    )


def _mean_rule(config: RuleConfig) -> RecordingRule:
    window = duration(config.step_window_seconds)
    phases = "\nor\n".join(
        f"label_replace(\n  sum by ({RANK}) (rate(rankwatch_step_phase_seconds_total"
        f'{{phase=~"{"|".join(parts)}"}}[{window}])),\n  "phase", "{phase}", "", ""\n)'
        for phase, parts in STEP_PHASES.items()
    )
    indented = "\n".join(f"  {line}" for line in phases.splitlines())
    return recorded(
        "rank_phase:rankwatch_step_local_seconds:mean",
        f"(\n{indented}\n)\n" + promql(f"/ on ({RANK}) group_left (stage)\nrank:rankwatch_steps:rate"),
    )


def straggler_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The slowdown caused by each rank that meets every condition; no series for all others."""
    return (
        _candidate_rule(config),
        recorded(
            STRAGGLER,
            # Ranks that share long microbatches are late together. A candidate in every stage may mean
            # that, unless tokens show otherwise.
            f"""
                {CANDIDATE}
                unless on (cluster, run)
                (
                  (
                    count by (cluster, run) (count by ({STAGE}) ({CANDIDATE}))
                    == on (cluster, run)
                    (run:rankwatch_stages:count > 1)
                  )
                  unless on (cluster, run)
                  rank:rankwatch_step_work:relative
                )
            """,
        ),
        recorded(COSTLY, f"{STRAGGLER} > {config.straggler_critical_slowdown:g}"),
    )


def _candidate_rule(config: RuleConfig) -> RecordingRule:
    """Step time over the step time with the rank at its peers' value, of ranks that stand out.

    Both the raw and the work-adjusted time must stand out: a rank with more tokens is no straggler,
    and neither is one with fewer tokens whose fixed costs make it look slow per token. In a run that jitters
    the rank must stand out without its late steps. The residual times the median is the work-adjusted excess.
    """
    residual, excess = f"{config.straggler_residual:g}", HIGH_EXCESS
    return recorded(
        CANDIDATE,
        f"""
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
            (stage:rankwatch_ranks:count >= {config.straggler_stage_ranks})
        """,
    )
