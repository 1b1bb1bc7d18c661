"""Which ranks of a run are of its present attempt.

The black box of a rank that ended is kept for a while. Where the run was started anew and the rank is on
another node since, or in no world any more, its box still says here that it was lost.
"""

from __future__ import annotations

from dataclasses import replace

from rankwatch_agent.training.suspicion import RankCondition, RunCondition

LEAST_SECONDS_BETWEEN = 60.0
"""Ranks of one attempt start on a node within less, imports on a cold file system included."""


def present(condition: RunCondition) -> RunCondition:
    """The condition without the ranks that ended before any of the living ones was started."""
    starts = [each.started for each in condition.ranks if not each.ended]
    if not starts or None in starts:
        return condition
    first = min(start for start in starts if start is not None)
    ranks = tuple(each for each in condition.ranks if not _ended_before(each, first))
    return replace(condition, ranks=ranks)


def _ended_before(rank: RankCondition, moment: float) -> bool:
    if not rank.ended or rank.started is None:
        return False
    return rank.last_progress < moment and rank.started + LEAST_SECONDS_BETWEEN < moment
