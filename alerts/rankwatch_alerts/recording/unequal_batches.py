"""Unequal batches: steps or microbatches of unequal work, for which the ranks wait in turn.

They show in three ways: a rank's own time follows the work of its steps; forward and backward of the same
microbatch take long together (noise strikes each by itself); some ranks get more work than others.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RANK, STAGE, RecordingRule, duration, promql, recorded

EXPECTED_MAXIMUM = "(sqrt(2 * ln({ranks})) - 0.6)"
"""Standard deviations by which the largest of that many normal values lies above the mean, expected:
the leading term of extreme-value theory, and a constant that keeps it within 5 % of the exact value for
2 to 1,024."""

_PAIRS = {"work": ("local", "work"), "microbatches": ("forward", "backward")}
"""By what explains the variation: the two terms that vary together because of it."""


def unequal_batches_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From squared deviations to what unequal batches explain of them, and to what that costs the run."""
    window = duration(config.step_window_seconds)
    return (
        recorded(
            "run:rankwatch_step_waiting:share",
            """
                quantile by (cluster, run) (
                  0.5,
                  1 - rank:rankwatch_step_local_seconds:mean / (rank:rankwatch_step_seconds:mean > 0)
                )
            """,
        ),
        recorded(
            "rank:rankwatch_step_variation:mean",
            f"""
                sum by ({RANK}, term) (rate(rankwatch_step_variation_total[{window}]))
                / on ({RANK}) group_left (stage)
                rank:rankwatch_steps:rate
            """,
        ),
        recorded(
            "rank_reason:rankwatch_step_variation:covariance",
            "or\n".join(_covariance(reason, *pair) for reason, pair in _PAIRS.items()),
        ),
        recorded(
            "rank_reason:rankwatch_step_variation:correlation",
            "or\n".join(_correlation(reason, *pair) for reason, pair in _PAIRS.items()),
        ),
        _sigma_rule(window),
        *_share_rules(config),
    )


def _term(name: str) -> str:
    return f'rank:rankwatch_step_variation:mean{{term="{name}"}}'


def _covariance_of(reason: str) -> str:
    return f'rank_reason:rankwatch_step_variation:covariance{{reason="{reason}"}}'


def _labelled(reason: str, expression: str) -> str:
    return f'label_replace(\n{expression},\n  "reason", "{reason}", "", ""\n)\n'


def _covariance(reason: str, one: str, other: str) -> str:
    on = f"on ({RANK}, stage)"
    both = f"{_term(f'{one}_and_{other}')} - {on} {_term(one)} - {on} {_term(other)}"
    return _labelled(reason, f"  ({both}) / 2")


def _correlation(reason: str, one: str, other: str) -> str:
    on = f"on ({RANK}, stage)"
    return _labelled(
        reason, f"  {_covariance_of(reason)}\n  / {on}\n  sqrt({_term(one)} * {on} {_term(other)} > 0)"
    )


def _sigma_rule(window: str) -> RecordingRule:
    """Standard deviation of the step's own time that work or microbatches explain.

    Work explains the covariance over its own spread. Microbatches add up, so their spread shrinks with the
    root of their number.
    """
    on = f"on ({RANK}, stage)"
    microbatches = promql(f"""
          sqrt(
            ({_covariance_of("microbatches")} > 0)
            / on ({RANK}) group_left ()
            (
              sum by ({RANK}) (rate(rankwatch_step_microbatches_total[{window}]))
              / on ({RANK})
              (sum by ({RANK}) (rank:rankwatch_steps:rate))
              > 0
            )
          )
    """)
    work = f"  ({_covariance_of('work')} > 0)\n  / {on}\n  sqrt({_term('work')} > 0)"
    return recorded(
        "rank_reason:rankwatch_step_variation:sigma",
        _labelled("work", work) + "or\n" + _labelled("microbatches", microbatches.rstrip()),
    )


def _share_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What unequal batches cost, as a share of the step, by the evidence for them that passes its test."""
    return (
        recorded(
            "run_reason:rankwatch_unequal_batches:share",
            _uneven_steps(config) + "or\n" + _uneven_ranks(config),
        ),
        recorded(
            "run:rankwatch_unequal_batches:share",
            # It cannot cost more than the ranks wait.
            f"""
                (
                  max by (cluster, run) (run_reason:rankwatch_unequal_batches:share)
                  < on (cluster, run)
                  run:rankwatch_step_waiting:share
                  or
                  run:rankwatch_step_waiting:share
                  and on (cluster, run)
                  max by (cluster, run) (run_reason:rankwatch_unequal_batches:share)
                )
                > {config.cause_cost:g}
            """,
        ),
    )


def _uneven_steps(config: RuleConfig) -> str:
    ranks = "max by (cluster, run) (stage:rankwatch_ranks:count)"
    reason = "cluster, run, reason"
    return promql(f"""
        quantile by ({reason}) (0.5, rank_reason:rankwatch_step_variation:sigma)
        * on (cluster, run) group_left ()
        {EXPECTED_MAXIMUM.format(ranks=f"({ranks} > 1)")}
        * on (cluster, run) group_left ()
        (1 - run:rankwatch_step_waiting:share)
        and on ({reason})
        (
          quantile by ({reason}) (0.5, rank_reason:rankwatch_step_variation:correlation)
          > {config.unequal_batches_correlation:g}
        )
        and on ({reason})
        (
          quantile by ({reason}) (0.5, rank_reason:rankwatch_step_variation:covariance)
          > {config.unequal_batches_sigma**2:g}
        )
    """)


def _uneven_ranks(config: RuleConfig) -> str:
    """Ranks that take longer because they have more work, but not per unit of work."""
    rank = f"on ({RANK}, stage)"
    return promql(f"""
        label_replace(
          max by (cluster, run) (
            (
              rank:rankwatch_step_local_seconds:excess
              and {rank}
              (rank:rankwatch_step_work:relative > {1 + config.straggler_residual:g})
            )
            / {rank} (rank:rankwatch_step_seconds:mean > 0)
            and {rank}
            (rank:rankwatch_step_local_seconds:residual < {config.straggler_residual:g})
            and on ({STAGE})
            (stage:rankwatch_ranks:count > 1)
          ),
          "reason", "ranks", "", ""
        )
    """)
