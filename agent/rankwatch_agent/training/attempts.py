"""Tells the present attempt of a run from an earlier one, for all who judge a run by its ranks.

The black box of a rank that ended is kept for a while. After a restart of the run the rank may live on
another node, or the world may be smaller, and its box here still shows it as lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_START_SECONDS = 1800.0
"""No process group waits longer for its ranks: PyTorch's default timeout of gloo; NCCL's is shorter."""


class Lifetime(NamedTuple):
    """One process of a rank. Moments are seconds on one clock for all ranks that are compared."""

    started: float
    last_sign: float
    """The last moment at which it is known to have lived."""
    ended: bool
    took_part: bool
    """It finished a step or called a collective: it had met the other ranks of its attempt."""


def in_present_attempt(lifetimes: Sequence[Lifetime]) -> list[bool]:
    """For each process whether it belongs to the attempt of those that live; all do while none lives.

    A process that ended before any living one started belongs to an earlier attempt if it took part in one.
    Another one may have died while its peers were still on their way, as long as they can have waited for it.
    """
    first = min((each.started for each in lifetimes if not each.ended), default=None)
    return [first is None or not _is_earlier(each, first) for each in lifetimes]


def _is_earlier(process: Lifetime, first: float) -> bool:
    if not process.ended or process.last_sign >= first:
        return False
    return process.took_part or process.started + MOST_START_SECONDS < first
