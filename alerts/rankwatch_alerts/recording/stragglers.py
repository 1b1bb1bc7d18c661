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
from rankwatch_alerts.recording.causes import LATE_IN_TURN
from rankwatch_alerts.recording.costs import COST, LATER
from rankwatch_alerts.rules import RANK, RUN, STAGE, RecordingRule, duration, promql, recorded

HIGH_EXCESS = "rank:rankwatch_step_local_seconds:high_excess"
"""Excess of the few ranks whose residual is that of a straggler; expensive joins use only these."""
CANDIDATE = "rank:rankwatch_straggler_candidate:slowdown"
PLACED_CANDIDATE = "rank:rankwatch_straggler_candidate:replica"
STRAGGLER = "rank:rankwatch_straggler:slowdown"
COSTLY = "rank:rankwatch_straggler_costly:slowdown"
SPREAD = "run:rankwatch_step_local_seconds:spread"
LEARNT_SPREAD = "run:rankwatch_step_local_seconds:learnt_spread"
THRESHOLD = "run:rankwatch_straggler_residual:threshold"
MAD_TO_SIGMA = "1.4826"
"""Standard deviation of a normal distribution from its median absolute deviation."""


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
        *_threshold_rules(config),
        recorded(
            HIGH_EXCESS,
            f"""
                rank:rankwatch_step_local_seconds:excess
                and
                (rank:rankwatch_step_local_seconds:residual > on ({RUN}) group_left () {THRESHOLD})
            """,
        ),
    )


def _threshold_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The residual from which a rank of this run stands out, by how far its chips differ.

    The spread is that of all ranks, each against its own stage. A median stays put while fewer than half of
    them are off, and a chip differs for good, so a large spread of the past is kept for hours. What hits half
    of the ranks for hours is no difference between chips, so what is learnt has an upper limit.
    """
    past = f"[{duration(config.straggler_history_seconds)}]"
    least = config.straggler_min_history_seconds / config.scrape_interval_seconds
    factor = f"{config.straggler_run_spread_factor:g}"
    return (
        recorded(
            SPREAD,
            # The median of each stage is taken from its own ranks, which costs a degree of freedom.
            f"""
                {MAD_TO_SIGMA} * quantile by ({RUN}) (
                  0.5,
                  abs(
                    rank:rankwatch_step_local_seconds:residual
                    and on ({STAGE})
                    (stage:rankwatch_ranks:count >= {config.straggler_stage_ranks})
                  )
                )
                / on ({RUN})
                (1 - 1 / avg by ({RUN}) (stage:rankwatch_ranks:count >= {config.straggler_stage_ranks}))
            """,
        ),
        recorded(
            LEARNT_SPREAD,
            f"""
                clamp_max(
                  quantile_over_time(0.9, {SPREAD}{past}),
                  {config.straggler_most_spread:g}
                )
                and
                (count_over_time({SPREAD}{past}) >= {least:g})
            """,
        ),
        recorded(
            THRESHOLD,
            f"""
                clamp_min(
                  {factor} * ({SPREAD} > {LEARNT_SPREAD} or {LEARNT_SPREAD}),
                  {min(config.straggler_least_residual, config.straggler_residual):g}
                )
                or
                clamp_min({factor} * {SPREAD}, {config.straggler_residual:g})
                or
                0 * run:rankwatch_step_seconds:mean + {config.straggler_residual:g}
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
            PLACED_CANDIDATE,
            f"{CANDIDATE} * on ({RANK}) group_left (replica) rank:rankwatch_rank_stage:info",
        ),
        recorded(
            STRAGGLER,
            # Ranks of a replica share their microbatches, and are late together if these are long. A
            # candidate in every stage of a replica may mean that, unless tokens show otherwise.
            f"""
                {CANDIDATE}
                unless on ({RANK})
                (
                  {PLACED_CANDIDATE}
                  and on ({RUN}, replica)
                  (
                    count by ({RUN}, replica) (count by ({STAGE}, replica) ({PLACED_CANDIDATE}))
                    == on ({RUN}) group_left ()
                    (run:rankwatch_stages:count > 1)
                  )
                  unless on ({RUN})
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
    the rank must stand out without its late steps, unless most of them are its own. The residual times the
    median is the work-adjusted excess.
    """
    excess, above = HIGH_EXCESS, f"> on ({RUN}) group_left () {THRESHOLD}"
    of_median = f"/ on ({STAGE}) group_left () stage:rankwatch_step_local_seconds:median"
    return recorded(
        CANDIDATE,
        f"""
            1 / (1 - ({COST} > 0) / rank:rankwatch_step_seconds:mean)
            and
            ({excess} {of_median} {above})
            and
            (
              (rank:rankwatch_step_local_seconds:residual and {excess})
              * on ({STAGE}) group_left () stage:rankwatch_step_local_seconds:work_adjusted_median
              > on ({STAGE}) group_left ()
              ({config.straggler_spread_factor:g} * stage:rankwatch_step_local_seconds:work_adjusted_mad)
            )
            and
            ({LATER} > {config.straggler_cost:g} * rank:rankwatch_step_seconds:mean)
            and
            (
              ({excess} - rank:rankwatch_late_step_seconds:mean) {of_median} {above}
              or
              {excess}
              unless on ({RUN})
              run:rankwatch_jitter:share
              or
              {excess}
              unless on ({RANK})
              {LATE_IN_TURN}
            )
            and on ({STAGE})
            (stage:rankwatch_ranks:count >= {config.straggler_stage_ranks})
        """,
    )
