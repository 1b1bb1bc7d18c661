"""Unequal batches: steps or microbatches of unequal work, for which the ranks wait in turn.

They show in three ways: a rank's own time follows the work of its steps; forward and backward of the same
microbatch take long together (noise strikes each by itself); some ranks get more work than others.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import (
    MEDIAN,
    RANKS,
    STEP,
    TOKEN_MEDIAN,
    estimate,
    of_all,
    recent,
)
from rankwatch_alerts.rules import STAGE, RecordingRule, promql, recorded

EXPECTED_MAXIMUM = "(sqrt(2 * ln({ranks})) - 0.6)"
"""Standard deviations by which the largest of that many normal values lies above the mean, expected:
the leading term of extreme-value theory, and a constant that keeps it within 5 % of the exact value for
2 to 1,024."""

UNEQUAL_BATCHES = "run:rankwatch_unequal_batches:share"
WAITING = "run:rankwatch_step_waiting:share"
_TOKENS_MEDIAN = "stage:rankwatch_step_tokens:median"


def unequal_batches_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """How long ranks wait, the evidence for unequal batches, and what they cost the run."""
    return (
        recorded(
            WAITING,
            f"quantile by (cluster, run) (0.5, {recent(config, 'run_waiting_ratio')})",
        ),
        recorded(
            _TOKENS_MEDIAN,
            f"""
                quantile by ({STAGE}) (0.5, {of_all(config, "step_tokens")})
                and on ({STAGE})
                {TOKEN_MEDIAN}
            """,
        ),
        *_share_rules(config),
    )


def _share_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What unequal batches cost, as a share of the step, by the evidence for them that passes its test."""
    return (
        recorded(
            "run_reason:rankwatch_unequal_batches:share",
            _uneven_steps(config) + "or\n" + _uneven_ranks(config),
        ),
        recorded(
            estimate(UNEQUAL_BATCHES),
            # It cannot cost more than the ranks wait.
            f"""
                (
                  max by (cluster, run) (run_reason:rankwatch_unequal_batches:share)
                  < on (cluster, run)
                  {WAITING}
                  or
                  {WAITING}
                  and on (cluster, run)
                  max by (cluster, run) (run_reason:rankwatch_unequal_batches:share)
                )
                > {config.cause_cost:g}
            """,
        ),
    )


def _uneven_steps(config: RuleConfig) -> str:
    reason = "cluster, run, reason"
    return promql(f"""
        {_median_of(config, "run_sigma_ratio")}
        * on (cluster, run) group_left ()
        {EXPECTED_MAXIMUM.format(ranks=f"(max by (cluster, run) ({RANKS}) > 1)")}
        * on (cluster, run) group_left ()
        (1 - {WAITING})
        and on ({reason})
        (
          {_median_of(config, "run_correlation_ratio")}
          > {config.unequal_batches_correlation:g}
        )
        and on ({reason})
        (
          {_median_of(config, "run_covariance_ratio")}
          > {config.unequal_batches_sigma**2:g}
        )
    """)


def _median_of(config: RuleConfig, name: str) -> str:
    return f"quantile by (cluster, run, reason) (0.5, {recent(config, name)})"


def _uneven_ranks(config: RuleConfig) -> str:
    """The rank with most tokens of each node, where it takes longer by as much, but not per token."""
    most = f"max by ({STAGE}, node) ({recent(config, 'stage_most_tokens')})"
    local = f"max by ({STAGE}, node) ({recent(config, 'stage_most_tokens_local_seconds')})"
    least = f"{1 + config.straggler_residual:g}"
    return promql(f"""
        label_replace(
          max by (cluster, run) (
            (
              (
                {local}
                < on ({STAGE}, node)
                ({most} > on ({STAGE}) group_left () ({least} * {_TOKENS_MEDIAN}))
                * on ({STAGE}) group_left ()
                ({least} * {TOKEN_MEDIAN})
              )
              - on ({STAGE}) group_left ()
              ({MEDIAN} and on ({STAGE}) ({RANKS} > 1))
            )
            / on (cluster, run) group_left ()
            ({STEP} > 0)
          ),
          "reason", "ranks", "", ""
        )
    """)
