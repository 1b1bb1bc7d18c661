"""What is exported of one answer; bounded, however many communicators and ranks a job has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.sources.nccl_ras.judgement import SEVERITY, Judged, State
from rankwatch_agent.sources.nccl_ras.report import Process, Report

MAX_EXPORTED = 32
"""Communicators with series of their own: the worst first, then the largest. All are counted by state."""
MAX_RANKS = 64
"""Ranks named in one answer, over all of its communicators."""

_INFO = metric("rankwatch_nccl_info")
_TIMEOUTS = metric("rankwatch_nccl_ras_timeouts")
_COMMUNICATORS = metric("rankwatch_nccl_communicators")
_PROCESSES = metric("rankwatch_nccl_processes_missing")
_STATE = metric("rankwatch_nccl_communicator_state")
_SIZE = metric("rankwatch_nccl_communicator_ranks")
_MISSING = metric("rankwatch_nccl_communicator_ranks_missing")
_BEHIND = metric("rankwatch_nccl_communicator_ranks_behind")
_SPREAD = metric("rankwatch_nccl_communicator_launch_spread")
_LAUNCHES = metric("rankwatch_nccl_communicator_launches_total")
_RANK_BEHIND = metric("rankwatch_nccl_rank_launches_behind")
_RANK_MISSING = metric("rankwatch_nccl_rank_missing")

Place = tuple[str, str]
"""Address of the service and run."""


def series_of(
    place: Place, report: Report, judged: Sequence[Judged], ranks: Mapping[Process, int]
) -> Iterator[Series]:
    """Job, then communicators, then ranks; `ranks`: global ranks by process, where they are known."""
    yield Series(_INFO, (*place, report.version), 1)
    yield Series(_TIMEOUTS, place, report.timeouts)
    states = Counter(each.state for each in judged)
    states[State.UNKNOWN] += report.unnamed
    for state in SEVERITY:
        yield Series(_COMMUNICATORS, (*place, state), states[state])
    for absence, number in report.processes_missing.items():
        yield Series(_PROCESSES, (*place, absence), number)
    for each in judged[:MAX_EXPORTED]:
        yield from _of_communicator(place, each)
    named = (found for each in judged[:MAX_EXPORTED] for found in _of_ranks(place, each, ranks))
    for _, found in zip(range(MAX_RANKS), named, strict=False):
        yield found


def _of_communicator(place: Place, judged: Judged) -> Iterator[Series]:
    each = judged.communicator
    key = (*place, each.name)
    yield Series(_STATE, (*key, judged.state, judged.reason), 1)
    yield Series(_SIZE, key, each.size)
    yield Series(_MISSING, key, each.missing)
    if each.spread is not None:
        yield Series(_SPREAD, key, each.spread)
        yield Series(_BEHIND, key, each.behind)
    if each.launches is not None:
        yield Series(_LAUNCHES, key, each.launches)


def _of_ranks(place: Place, judged: Judged, ranks: Mapping[Process, int]) -> Iterator[Series]:
    each = judged.communicator
    for missing in each.named_missing:
        key = (*place, each.name, str(missing.rank), _global(missing.process, ranks))
        yield Series(_RANK_MISSING, (*key, missing.absence), 1)
    # In a run that moves there is always someone behind, each time another.
    if SEVERITY.index(judged.state) >= SEVERITY.index(State.SUSPECT):
        for late in each.late:
            key = (*place, each.name, str(late.rank), _global(late.process, ranks))
            yield Series(_RANK_BEHIND, key, late.behind)


def _global(process: Process | None, ranks: Mapping[Process, int]) -> str:
    rank = ranks.get(process) if process is not None else None
    return "" if rank is None else str(rank)
