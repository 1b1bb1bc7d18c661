"""Where the process is in its run, for its log lines: run, attempt, rank, node, step, trace and span."""

from __future__ import annotations

import os
import weakref
from typing import Any, NamedTuple, Protocol

from rankwatch.conventions import environment
from rankwatch.identity import Identity
from rankwatch.trace_ids import rank_step_span, run_trace, span_text, step_trace, trace_text


class _Steps(Protocol):
    current: int
    """Number of the open step, else of the last one; -1 before the first."""
    repeats: int
    """How often the numbers have begun again."""


class _Place(NamedTuple):
    """The run that this process records."""

    identity: Identity
    steps: weakref.ref[_Steps]
    """Dead once the run is gone."""
    cluster: str


_place: _Place | None = None
_cached: tuple[_Place | None, tuple[int, int], dict[str, Any]] = (None, (-1, 0), {})
"""The fields of a step: a loop may write many lines in one."""


def follow(identity: Identity, steps: _Steps) -> None:
    """Have log lines name this run from now on."""
    global _place
    _place = _Place(identity, weakref.ref(steps), os.environ.get(environment.CLUSTER, ""))


def fields() -> dict[str, Any]:
    """The fields of a log line written now; empty while the rank of this process is not known.

    run, attempt, rank, node: text, number, number, text.
    step: the open one, else the last one; none before the first.
    trace_id, span_id: of the rank's step, in hexadecimal; before the first step only the trace of the run.

    Takes no lock and raises nothing.
    """
    global _cached
    place = _place
    if place is None:
        return {}
    steps = place.steps()
    step = (-1, 0) if steps is None else (steps.current, steps.repeats)
    of_place, of_step, found = _cached
    if of_place is not place or of_step != step:
        found = _fields(place, *step)
        _cached = (place, step, found)
    return dict(found)


def current_step() -> int:
    """Number of the open step, else of the last one; -1 before the first, and once the run is gone."""
    steps = None if _place is None else _place.steps()
    return -1 if steps is None else steps.current


def _fields(place: _Place, step: int, repeat: int) -> dict[str, Any]:
    identity, cluster = place.identity, place.cluster
    attempt = identity.attempt
    found: dict[str, Any] = {
        "run": identity.run,
        "attempt": attempt,
        "rank": identity.rank,
        "node": identity.host,
    }
    if step < 0:
        return found | {"trace_id": trace_text(run_trace(cluster, identity.run))}
    trace = step_trace(cluster, identity.run, attempt, step, repeat)
    span = span_text(rank_step_span(trace, identity.rank))
    return found | {"step": step, "trace_id": trace_text(trace), "span_id": span}
