"""A verdict in words: whom it names, what they do, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.report import rank_seconds
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import Verdict

_MOST_RANKS = 16
"""In the sentence; --json has them all."""

_SENTENCES: Mapping[Cause, str] = {
    Cause.SLOW_STAGE: "a pipeline stage holds more work than the others",
    Cause.UNEQUAL_BATCHES: "microbatches are of unequal size",
    Cause.DATA_LOADING: "ranks wait long for their batches",
    Cause.NETWORK: "transfers are slow where nobody is waited for",
    Cause.JITTER: "ranks are late in turn, none for long",
    Cause.NONE: "nothing slows the run down",
    Cause.INCONCLUSIVE: "this table does not show the cause or the rank",
}

_SLOW_RANKS: Mapping[SlowPhase, tuple[str, str]] = {
    SlowPhase.COMPUTE: ("computes more slowly than its peers", "compute more slowly than their peers"),
    SlowPhase.DATA_LOADING: ("waits longer for data than its peers", "wait longer for data than their peers"),
    SlowPhase.CHECKPOINT: (
        "takes longer for checkpoints than its peers",
        "take longer for checkpoints than their peers",
    ),
    SlowPhase.OTHER: (
        "takes longer for other host work than its peers",
        "take longer for other host work than their peers",
    ),
}
"""What one slow rank does, and what several do."""


def whom(found: Verdict) -> str:
    """`rank 3`, `ranks 3, 5 and 2 more`, `stage 1`; empty where nobody is named."""
    if found.ranks:
        shown = ", ".join(str(each) for each in found.ranks[:_MOST_RANKS])
        more = len(found.ranks) - _MOST_RANKS
        return f"rank{'s' * (len(found.ranks) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"
    if found.stages:
        return f"stage{'s' * (len(found.stages) > 1)} {', '.join(str(each) for each in found.stages)}"
    return ""


def sentence(found: Verdict) -> str:
    """What slows the run down, or that nothing does."""
    if found.cause is Cause.NONE and found.causes:
        return f"nothing that was found costs the run {DEFAULT.least_slowdown - 1.0:.0%}"
    if found.phase is None:
        return _SENTENCES[found.cause]
    one, several = _SLOW_RANKS[found.phase]
    return one if len(found.ranks) == 1 else several


def share_lost(found: Verdict) -> str:
    """By how much the run is slower for it: `3.4%`, `at most 3.4%`, `less than 0.1%`."""
    ratio = found.slowdown - 1.0
    cost = f"{ratio:.1%}" if ratio >= 0.0005 else "less than 0.1%"
    return f"at most {cost}" if found.is_bound else cost


def cost_sentence(found: Verdict) -> str:
    """What it costs, and since when; empty where it costs nothing."""
    if found.slowdown <= 1.0:
        return ""
    cost = share_lost(found)
    since = "" if found.first_step is None else f", since step {found.first_step}"
    lost = rank_seconds(found.lost_rank_seconds)
    return f"the run is {cost} slower for it{since}; {lost} rank-seconds lost"
