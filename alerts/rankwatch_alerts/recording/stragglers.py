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

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.causes import LATE_IN_TURN
from rankwatch_alerts.recording.costs import COST, HIGH_EXCESS, LATE_EXCESS, LATER
from rankwatch_alerts.recording.steps import (
    EVERY_RANK,
    MEDIAN,
    RANKS,
    STEP,
    TOKEN_MEDIAN,
    of_all,
    recent,
)
from rankwatch_alerts.rules import RANK, RUN, STAGE, RecordingRule, duration, recorded

CANDIDATE = "rank:rankwatch_straggler_candidate:slowdown"
PLACED_CANDIDATE = "rank:rankwatch_straggler_candidate:replica"
RESIDUAL = "rank:rankwatch_step_local_seconds:residual"
RANKS_BY_EXCESS = "run_excess:rankwatch_ranks:count"
LEAST_EXCESS, MOST_EXCESS = -5, 50
"""Percent below and from which on all ranks are counted together."""
_HALF_RESIDUAL = "half:rankwatch_step_local_seconds:residual"
"""Of large runs: what speaks for all ranks of a node."""
_RESIDUALS = f"({_HALF_RESIDUAL} or {RESIDUAL}{EVERY_RANK})"
DEVIATION = "stage:rankwatch_step_local_seconds:residual_deviation"
"""Median of the absolute residuals: that of the residuals themselves is 0."""
PHASE_EXCESS = "rank_phase:rankwatch_step_local_seconds:excess"
STRAGGLER = "rank:rankwatch_straggler:slowdown"
COSTLY = "rank:rankwatch_straggler_costly:slowdown"
SPREAD = "run:rankwatch_step_local_seconds:spread"
LEARNT_SPREAD = "run:rankwatch_step_local_seconds:learnt_spread"
THRESHOLD = "run:rankwatch_straggler_residual:threshold"
MAD_TO_SIGMA = "1.4826"
"""Standard deviation of a normal distribution from its median absolute deviation."""


def residual_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From medians of the stages to the residual of each rank, and the excess of those that stand out."""
    local = recent(config, "step_local_seconds")
    return (
        recorded(MEDIAN, f"quantile by ({STAGE}) (0.5, {of_all(config, 'step_local_seconds')})"),
        recorded(RANKS, _ranks(config, "ranks")),
        recorded(
            TOKEN_MEDIAN,
            # Where some ranks of a stage report no tokens, none are compared by them.
            f"""
                (quantile by ({STAGE}) (0.5, {of_all(config, "token_local_seconds")}) > 0)
                and on ({STAGE})
                ({_ranks(config, "token_ranks")} == on ({STAGE}) {RANKS})
            """,
        ),
        recorded(RESIDUAL, _residual(config, f"{RANK}, stage, shown", "")),
        recorded(
            RANKS_BY_EXCESS,
            # One look at each rank for all rows of a history.
            f"""
                count_values by ({RUN}) (
                  "excess",
                  clamp(floor(100 * {RESIDUAL}), {LEAST_EXCESS - 1}, {MOST_EXCESS})
                )
            """,
        ),
        recorded(_HALF_RESIDUAL, _residual(config, f"{RUN}, node, stage, half", "half_")),
        recorded(DEVIATION, f"quantile by ({STAGE}) (0.5, abs({_RESIDUALS}))"),
        *_threshold_rules(config),
        recorded(
            HIGH_EXCESS,
            f"""
                max by ({RANK}, stage) (
                  (
                    {local}
                    and on ({RANK}, stage)
                    ({RESIDUAL} > on ({RUN}) group_left () {THRESHOLD})
                  )
                  - on ({STAGE}) group_left ()
                  {MEDIAN}
                )
            """,
        ),
    )


def _residual(config: RuleConfig, by: str, of: str) -> str:
    """Relative to the median of the stage: the local time per token, where all ranks have tokens."""
    return f"""
        max by ({by}) (
          {recent(config, f"{of}token_local_seconds")}
          / on ({STAGE}) group_left ()
          {TOKEN_MEDIAN}
          or
          {recent(config, f"{of}step_local_seconds")}
          / on ({STAGE}) group_left ()
          ({MEDIAN} > 0 unless on ({STAGE}) {TOKEN_MEDIAN})
        )
        - 1
    """


def _ranks(config: RuleConfig, name: str) -> str:
    """Their number by stage; once of each node, where an agent has just moved."""
    return f"sum by ({STAGE}) (max by ({STAGE}, node) ({recent(config, f'stage_{name}')}))"


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
                    {_RESIDUALS}
                    and on ({STAGE})
                    ({RANKS} >= {config.straggler_stage_ranks})
                  )
                )
                / on ({RUN})
                (1 - 1 / avg by ({RUN}) ({RANKS} >= {config.straggler_stage_ranks}))
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
                0 * {STEP} + {config.straggler_residual:g}
            """,
        ),
    )


def phase_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """By phase, of ranks that stand out: excess over the stage's median, and share of the rank's excess."""
    cohort = "cluster, run, stage, phase"
    positive = f"({PHASE_EXCESS} > 0)"
    return (
        recorded(
            PHASE_EXCESS,
            f"""
                max by ({RANK}, stage, phase) (
                  {recent(config, "step_phase_seconds")} and on ({RANK}, stage) {HIGH_EXCESS}
                )
                - on ({cohort}) group_left ()
                quantile by ({cohort}) (0.5, {recent(config, "stage_phase_seconds")})
            """,
        ),
        recorded(
            "rank_phase:rankwatch_step_local_seconds:excess_share",
            f"""
                {positive}
                / on ({RANK}, stage) group_left ()
                sum by ({RANK}, stage) {positive}
            """,
        ),
    )


def straggler_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The slowdown caused by each rank that meets every condition; no series for all others."""
    placed = f"{recent(config, 'step_local_seconds')} and on ({RANK}, stage) {CANDIDATE}"
    return (
        _candidate_rule(config),
        recorded(
            PLACED_CANDIDATE,
            # A rank seen in two replicas is mid-restart: left out.
            f"""
                {CANDIDATE}
                * on ({RANK}, stage) group_left (replica)
                (
                  group by ({RANK}, stage, replica) ({placed})
                  unless on ({RANK}, stage)
                  (count by ({RANK}, stage) (group by ({RANK}, stage, replica) ({placed})) > 1)
                )
            """,
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
                  {TOKEN_MEDIAN}
                )
            """,
        ),
        recorded(COSTLY, f"{STRAGGLER} > {config.straggler_critical_slowdown:g}"),
    )


def _candidate_rule(config: RuleConfig) -> RecordingRule:
    """Step time over the step time with the rank at its peers' value, of ranks that stand out.

    Both the raw time and that per token must stand out: a rank with more tokens is no straggler, and neither
    is one with fewer tokens whose fixed costs make it look slow per token. In a run that jitters the rank
    must stand out without its late steps, unless most of them are its own.
    """
    excess, above = HIGH_EXCESS, f"> on ({RUN}) group_left () {THRESHOLD}"
    of_median = f"/ on ({STAGE}) group_left () {MEDIAN}"
    return recorded(
        CANDIDATE,
        f"""
            1 / (1 - ({COST} > 0) / on ({RUN}) group_left () {STEP})
            and
            ({excess} {of_median} {above})
            and on ({RANK}, stage)
            (
              ({RESIDUAL} and on ({RANK}, stage) {excess})
              > on ({STAGE}) group_left ()
              ({config.straggler_spread_factor:g} * {DEVIATION})
            )
            and
            ({LATER} > on ({RUN}) group_left () ({config.straggler_cost:g} * {STEP}))
            and
            (
              ({excess} - {LATE_EXCESS}) {of_median} {above}
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
            ({RANKS} >= {config.straggler_stage_ranks})
        """,
    )
