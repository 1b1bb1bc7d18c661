"""What a page and Markdown say alike about a run."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch.conventions.states import GoodputState
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.goodput.report import duration, moment, price_head, share
from rankwatch_diagnosis.review.model import CheckpointSeen, Event, RunReview

QUESTIONS = (
    "Who or what noticed first, and how long after it began?",
    "What was changed before: code, data, image, driver, node, network?",
    "Did the alert, this report and the runbook name the right rank and cause? What was missing?",
    "What was done, by whom, and which step helped?",
    "Who was affected: deadlines, other runs, customers?",
    "Why was it possible, and why was it not caught earlier?",
    "What will be changed so that it does not happen again, or is found sooner? Who does it, and by when?",
)
"""What only people can answer."""
_SECONDS_PER_HOUR = 3600.0


def facts(review: RunReview) -> dict[str, str]:
    """The head of a report: names and values."""
    goodput = review.goodput
    ended = "now, it runs" if review.running else _moment(review.ended)
    found = {
        "result": review.result,
        "started": _moment(review.started),
        "ended": ended,
        "lasted": _lasted(review),
        "ranks": str(review.world_size or "not known"),
        "nodes": ", ".join(review.nodes[:4]) + (" and more" if len(review.nodes) > 4 else "") or "not known",
        "attempts": "not known" if goodput is None else str(len(goodput.attempts)),
        "progress": review.steps or "not known",
        "goodput": share(None if goodput is None else goodput.ettr),
    }
    costs = () if goodput is None else goodput.costs
    cost = ", ".join(f"{each.total:,.2f} {price_head(each)}" for each in costs)
    return {**found, "cost": cost or "unknown: no price"}


def impact(goodput: RunGoodput | None) -> Iterator[tuple[str, str, str, str]]:
    """Rows of what was lost: state, rank-hours, share, money. A rank has one GPU."""
    if goodput is None or goodput.requested <= 0.0:
        return
    lost = [each for each in GoodputState if each is not GoodputState.PRODUCTIVE and goodput[each] > 0.0]
    for state in sorted(lost, key=lambda each: -goodput[each]):
        yield _row(goodput, state.value, (state,))
    yield _row(goodput, "all that was lost", tuple(lost))
    yield _row(goodput, "productive", (GoodputState.PRODUCTIVE,))


def _row(goodput: RunGoodput, name: str, states: tuple[GoodputState, ...]) -> tuple[str, str, str, str]:
    seconds = sum(goodput[each] for each in states)
    money = ", ".join(
        f"{sum(cost.by_state.get(each, 0.0) for each in states):,.2f} {cost.currency}"
        for cost in goodput.costs
    )
    exact = seconds / _SECONDS_PER_HOUR
    hours = (
        f"{exact:,.3g}" if 0.001 <= exact < 1000.0 else f"{exact:,.3f}" if exact < 1.0 else f"{exact:,.0f}"
    )
    return name, hours, share(seconds / goodput.requested), money or "unknown"


def when(event: Event) -> str:
    """Its moment, and how long it lasted."""
    if event.until is None or event.until - event.at < 1.0:
        return moment(event.at)
    return f"{moment(event.at)}, for {duration(event.until - event.at)}"


def where(event: Event) -> str:
    """Rank and node, as far as they are known."""
    rank = f"rank {event.rank}" if event.rank is not None else ""
    return " on ".join(filter(None, (rank, event.node)))


def checkpoint_row(seen: CheckpointSeen) -> tuple[str, str, str, str, str, str]:
    """When, operation, step, result, seconds with those that blocked, path."""
    result = "ok" if not seen.failed else f"failed on {seen.failed}"
    ranks = f"{result}, {seen.ranks} rank{'' if seen.ranks == 1 else 's'}"
    took = f"{duration(seen.seconds)} on rank {seen.slowest_rank}"
    took += f", {duration(seen.blocking_seconds)} of it blocking"
    return moment(seen.ended), seen.operation, str(seen.step), ranks, took, seen.path


def _moment(wall: float | None) -> str:
    return "not known" if wall is None else moment(wall)


def _lasted(review: RunReview) -> str:
    if review.started is None or review.ended is None:
        return "not known"
    return duration(max(0.0, review.ended - review.started))
