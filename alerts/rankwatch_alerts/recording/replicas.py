"""Replicas whose parameters are not equal, and which of them is the odd one.

Only fingerprints of the same step are compared: of the newest step that any of the ranks shows, as soon as
half of them show it. Ranks that lag are compared later, or on a level that changes more seldom.

Where more than half of the values are equal, the median is that value. A rank with another one is odd.

The gradient norm of the same step is compared, too: after the all-reduce it is the same on all replicas. It
is judged only where the majority agrees to the last digits. Norms before the all-reduce do not.
"""

from __future__ import annotations

from rankwatch.conventions.replicas import OTHER_NORM, SAME_NORM
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, recorded

COMPARED = "rank:rankwatch_fingerprint_compared:max"
RANK_DIFFERS = "rank:rankwatch_replica_differs:step"
REPLICAS_DIFFER = "run:rankwatch_replicas_differ:step"
REPLICAS_EQUAL = "run:rankwatch_replicas_equal:step"
_GROUP = "cluster, run, members, level"
_STEPS = "max by (cluster, run, members, level, rank, node) (rankwatch_rank_fingerprint_step)"
_LEAST_FOR_MAJORITY = 3
NORM_DEVIATION = "rank:rankwatch_gradient_norm_deviation:ratio"
NORM_DIFFERS = "rank:rankwatch_gradient_norm_differs:step"


def replica_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What is compared, the odd ranks, replicas without a majority, and the last step of equality."""
    median = f"quantile by ({_GROUP}) (0.5, {COMPARED})"
    with_majority = f"count by ({_GROUP}) ({COMPARED} == on ({_GROUP}) group_left () {median})"
    majority = f"""
        {with_majority} * 2 > count by ({_GROUP}) ({COMPARED})
        and on ({_GROUP})
        count by ({_GROUP}) ({COMPARED}) >= {_LEAST_FOR_MAJORITY}
    """
    newest = f"max by ({_GROUP}) ({_STEPS})"
    differ = f"max by ({_GROUP}) ({COMPARED}) != min by ({_GROUP}) ({COMPARED})"
    equal = f"""
        max by ({_GROUP}) ({COMPARED}) == min by ({_GROUP}) ({COMPARED})
        and on ({_GROUP})
        count by ({_GROUP}) ({COMPARED}) > 1
    """
    return (
        recorded(
            COMPARED,
            f"""
                max by ({_GROUP}, rank, node) (rankwatch_rank_fingerprint)
                and on ({_GROUP}, rank, node)
                ({_STEPS} == on ({_GROUP}) group_left () {newest})
                and on ({_GROUP})
                (
                  count by ({_GROUP}) ({_STEPS} == on ({_GROUP}) group_left () {newest}) * 2
                  >= count by ({_GROUP}) ({_STEPS})
                )
                and on (cluster, run)
                run:rankwatch_ranks_running:sum > 0
            """,
        ),
        recorded(
            RANK_DIFFERS,
            f"""
                min by (cluster, run, members, rank, node) (
                  {_STEPS}
                  and on ({_GROUP}, rank, node)
                  ({COMPARED} != on ({_GROUP}) group_left () {median})
                  and on ({_GROUP})
                  ({majority})
                )
            """,
        ),
        *_norm_rules(),
        recorded(
            REPLICAS_DIFFER,
            f"""
                min by (cluster, run, members) (
                  {newest}
                  and on ({_GROUP})
                  ({differ})
                  unless on ({_GROUP})
                  ({majority})
                )
            """,
        ),
        recorded(
            REPLICAS_EQUAL,
            f"max by (cluster, run, members) ({newest} and on ({_GROUP}) ({equal}))",
        ),
    )


def _norm_rules() -> tuple[RecordingRule, ...]:
    norms = f"""
        max by ({_GROUP}, rank, node) (rankwatch_rank_fingerprint_gradient_norm)
        and on ({_GROUP}, rank, node)
        {COMPARED}
    """
    agreeing = f"count by ({_GROUP}) ({NORM_DEVIATION} <= {SAME_NORM:f})"
    return (
        recorded(
            NORM_DEVIATION,
            f"""
                abs(
                  ({norms})
                  / on ({_GROUP}) group_left ()
                  quantile by ({_GROUP}) (0.5, {norms})
                  - 1
                )
            """,
        ),
        recorded(
            NORM_DIFFERS,
            f"""
                min by (cluster, run, members, rank, node) (
                  {_STEPS}
                  and on ({_GROUP}, rank, node)
                  ({NORM_DEVIATION} unless ({NORM_DEVIATION} <= {OTHER_NORM}))
                  and on ({_GROUP})
                  ({agreeing} * 2 > count by ({_GROUP}) ({NORM_DEVIATION}))
                  and on ({_GROUP})
                  (count by ({_GROUP}) ({NORM_DEVIATION}) >= {_LEAST_FOR_MAJORITY})
                )
            """,
        ),
    )
