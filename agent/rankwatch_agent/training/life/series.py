"""The series of a run that tell how its attempts began and ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import Outcome
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.runtime.node_events import RestartCycle
from rankwatch_agent.training.life.attempts import Attempt

_WANTED = frozenset((Outcome.FINISHED, Outcome.PREEMPTED, Outcome.INTERRUPTED))
"""Ends that are no fault of the run."""
_MOST_MESSAGE = 160
"""Characters of a message in a label."""


def life_series(
    run: str, attempts: Sequence[Attempt], headers: Iterable[Header], wall: Callable[[float], float]
) -> Iterator[Series]:
    """What this node knows of the newest attempt of a run, and how the newest that is over ended.

    headers: of the ranks here. wall: Unix time of a monotonic moment.
    """
    if not attempts:
        return
    newest = attempts[-1]
    yield sample("rankwatch_run_requeues", (run,), newest.requeues)
    yield sample("rankwatch_run_restarts", (run,), newest.restarts)
    yield sample("rankwatch_run_attempt_start_timestamp_seconds", (run,), wall(newest.started))
    if newest.first_steps:
        yield sample("rankwatch_run_time_to_first_step_seconds", (run,), max(newest.first_steps.values()))
    yield sample("rankwatch_run_attempts_without_progress", (run,), without_progress(attempts))
    if newest.cycle is not None:
        yield from _cycle_series(run, newest.cycle)
    deadline = max((each.deadline_wall or 0.0 for each in headers), default=0.0)
    if deadline:
        yield sample("rankwatch_run_deadline_timestamp_seconds", (run,), deadline)
    ended = next((each for each in reversed(attempts) if each.end is not None), None)
    if ended is not None and ended.end is not None and ended.ended is not None:
        end = ended.end
        labels = (
            run,
            str(ended.number),
            end.outcome,
            end.kind or "",
            end.exception,
            "" if end.rank is None else str(end.rank),
            end.message[:_MOST_MESSAGE],
        )
        yield sample("rankwatch_run_attempt_end_timestamp_seconds", labels, wall(ended.ended))


def _cycle_series(run: str, cycle: RestartCycle) -> Iterator[Series]:
    yield sample("rankwatch_run_cycle", (run,), cycle.number)
    yield sample("rankwatch_run_cycle_start_timestamp_seconds", (run,), cycle.started)
    if cycle.ended is not None:
        yield sample("rankwatch_run_cycle_end_timestamp_seconds", (run,), cycle.ended)
    if cycle.active_nodes is not None:
        yield sample("rankwatch_run_nodes", (run, "active"), cycle.active_nodes)
    yield sample("rankwatch_run_nodes", (run, "standby"), cycle.standby_nodes)


def without_progress(attempts: Sequence[Attempt]) -> int:
    """How many attempts have ended one after the other without a step that no attempt had reached before."""
    count, highest = 0, -1
    for each in attempts:
        further = each.highest_step > highest
        highest = max(highest, each.highest_step)
        if further or (each.end is not None and each.end.outcome in _WANTED):
            count = 0
        elif each.end is not None:
            count += 1
    return count
