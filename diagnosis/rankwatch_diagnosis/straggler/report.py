"""A verdict for people: whom it names, what that costs, the table of causes, and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict

_COLUMNS = ("who", "what", "steps", "share", "slower", "rank-s")
_LEFT = 3
"""Columns of words; the others are numbers."""
_MOST_ROWS = 12
_MOST_RANKS = 3
_MOST_SUSPECTS = 6
_INDENT = "  "
_MOST_NAMED = 16
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
"""Words for what one slow rank does, and what several do."""


def whom(found: Verdict) -> str:
    """Name whom it is: `rank 3`, `ranks 3, 5 and 2 more`, `stage 1`; empty where nobody is named."""
    if found.ranks:
        shown = ", ".join(str(each) for each in found.ranks[:_MOST_NAMED])
        more = len(found.ranks) - _MOST_NAMED
        return f"rank{'s' * (len(found.ranks) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"
    if found.stages:
        return f"stage{'s' * (len(found.stages) > 1)} {', '.join(str(each) for each in found.stages)}"
    return ""


def sentence(found: Verdict) -> str:
    """Return what slows the run down, or that nothing does."""
    if found.cause is Cause.NONE and found.causes:
        return f"nothing that was found costs the run {DEFAULT.least_slowdown - 1.0:.0%}"
    if found.phase is None:
        return _SENTENCES[found.cause]
    one, several = _SLOW_RANKS[found.phase]
    return one if len(found.ranks) == 1 else several


def share_lost(found: Verdict) -> str:
    """Say by how much the run is slower for it: `3.4%`, `at most 3.4%`, `less than 0.1%`."""
    ratio = found.slowdown - 1.0
    cost = f"{ratio:.1%}" if ratio >= 0.0005 else "less than 0.1%"
    return f"at most {cost}" if found.is_bound else cost


def cost_sentence(found: Verdict) -> str:
    """Return what it costs, and since when; empty where it costs nothing."""
    if found.slowdown <= 1.0:
        return ""
    cost = share_lost(found)
    since = "" if found.first_step is None else f", since step {found.first_step}"
    lost = rank_seconds(found.lost_rank_seconds)
    return f"the run is {cost} slower for it{since}; {lost} rank-seconds lost"


def cause_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the table of all causes that are certain."""
    certain = [each for each in verdict.causes if each.certain]
    if certain:
        yield "causes, and what each of them alone costs (rank-s: seconds lost, times ranks):"
        yield from _table(certain)


def unjudged_lines(verdict: Verdict) -> Iterator[str]:
    """Yield what is suspected only, why there is no verdict, and what was left out."""
    suspected = [each for each in verdict.causes if not each.certain]
    if suspected:
        yield "suspected only:"
        yield from _table(suspected)
        for each in suspected[:_MOST_ROWS]:
            yield from (f"{_INDENT}{each.cause.value}: {line}" for line in doubts(each))
    missing = list(reasons(verdict))
    if missing:
        yield "not judged:"
        yield from (f"{_INDENT}{each}" for each in missing)


def rank_seconds(lost: float) -> str:
    """Write seconds times ranks, with four digits."""
    return f"{lost:,.0f}" if lost >= 1000.0 else f"{lost:.4g}"


def fixed_line(verdict: Verdict) -> str:
    """Return what all differences together cost; empty where that is nothing."""
    gain = verdict.slowdown_if_all_fixed
    if gain is None or gain < 1.0005:
        return ""
    held = verdict.evidence.get("slowdown_by_operation")
    most = next(iter(held.items()), None) if isinstance(held, Mapping) else None
    where = f", most of it in {most[0]}" if most else ""
    return f"{gain - 1.0:.1%} slower than the same work spread evenly{where}"


def _table(causes: Sequence[FoundCause]) -> Iterator[str]:
    rows = [_COLUMNS, *map(_row, causes[:_MOST_ROWS])]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS))]
    for row in rows:
        cells = [
            cell.ljust(width) if index < _LEFT else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"{_INDENT}{'  '.join(cells)}".rstrip()
    if len(causes) > _MOST_ROWS:
        yield f"{_INDENT}and {len(causes) - _MOST_ROWS} more; --json shows them"


def _row(cause: FoundCause) -> tuple[str, ...]:
    steps = f"{cause.first_step}-{cause.last_step}"
    share = f"{cause.share_of_steps:.0%}"
    if cause.slowdown is None or cause.lost_rank_seconds is None:
        most = cause.evidence.get("slowdown_at_most")
        bound = f"<{most - 1.0:.1%}" if isinstance(most, float) else "?"
        return (who(cause), cause.cause_and_phase, steps, share, bound, "?")
    return (
        who(cause),
        cause.cause_and_phase,
        steps,
        share,
        f"{cause.slowdown - 1.0:.1%}",
        rank_seconds(cause.lost_rank_seconds),
    )


def who(cause: FoundCause) -> str:
    """Say whom a cause names: `the job` where it names nobody, a question mark where it is not certain."""
    for name, found in (("rank", cause.ranks), ("stage", cause.stages)):
        if found:
            shown = ", ".join(map(str, found[:_MOST_RANKS]))
            more = f" +{len(found) - _MOST_RANKS}" if len(found) > _MOST_RANKS else ""
            return f"{name}{'s' * (len(found) > 1)} {shown}{more}"
    return "?" if not cause.certain else "the job"


def doubts(cause: FoundCause) -> Iterator[str]:
    """Say why it is not certain, and whom it may be."""
    if why := cause.evidence.get("why"):
        yield str(why)
    elif cause.evidence.get("slowdown_is_upper_bound"):
        yield "nothing to compare with, so the cost is an upper bound"
    suspects = cause.evidence.get("suspected_ranks", cause.evidence.get("slow_ranks"))
    if isinstance(suspects, list) and suspects:
        shown = [f"rank {each['rank']} ({each['slower_by_ratio']:.1%})" for each in suspects[:_MOST_SUSPECTS]]
        more = f" and {len(suspects) - _MOST_SUSPECTS} more" if len(suspects) > _MOST_SUSPECTS else ""
        yield f"may be {', '.join(shown)}{more}"


def reasons(verdict: Verdict) -> Iterator[str]:
    """Say why there is no verdict, or why its costs are guesses, and what was left out."""
    evidence = verdict.evidence
    if not verdict.causes and (why := evidence.get("why")):
        yield str(why)
    unpriced = sum(each.slowdown is None and each.certain for each in verdict.causes)
    if unpriced:
        yield f"{unpriced} more causes were found and not priced, those with the least excess"
    ratio = evidence.get("replayed_ratio")
    if isinstance(ratio, float) and not 1.0 / DEFAULT.replay_ratio < ratio < DEFAULT.replay_ratio:
        yield f"the replay gives {ratio:.2f} times the recorded step, so the costs are guesses"
    skipped = evidence.get("skipped_rows")
    if isinstance(skipped, Mapping):
        yield f"rows left out: {', '.join(f'{count} {reason}' for reason, count in skipped.items())}"
