"""The time that single steps lose: which step, in which operation, on which rank.

One collective of 40 s among 600 short ones doubles the time of the run and is no trend: the trends are
judged without such steps, and the steps are reported beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rankwatch_agent.training.timeouts import SECTIONS
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, factorize
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.outliers import outlying

MOST_LISTED = 20
"""Events in a verdict, those that lost most."""
_MOSTLY = 0.5
"""Part of the lost time that an operation must hold to be named."""


class Events(NamedTuple):
    """The single events of a table."""

    listed: tuple[Mapping[str, object], ...]
    """The worst first; ready for JSON."""
    lost_seconds: float
    """Of all of them, those that are not listed included."""
    rows: Bools
    """By row of the table: it belongs to the step of an event."""


def find_events(table: OperationTable) -> Events:
    """Steps that took far longer than the usual ones, and what took their time."""
    step, steps = factorize(table.step)
    rank, ranks = factorize(table.rank)
    cells = Groups.grid((step, len(steps)), (rank, len(ranks)))
    first = cells.min(table.start_seconds).reshape(len(steps), -1)
    last = cells.max(table.end_seconds).reshape(len(steps), -1)
    spans = np.where(np.isfinite(first), last - first, 0.0).max(axis=1, initial=0.0)
    odd = np.array(outlying(spans.tolist()), dtype=np.bool_)
    if not odd.any():
        return Events((), 0.0, np.zeros(len(table), dtype=np.bool_))
    usual = float(np.median(spans[~odd]))
    by_operation = _Excess(table, step, rank, odd, len(ranks))
    lost = _lost(first, last, spans, odd, usual)
    found = [
        _event(int(steps[at]), float(spans[at]), lost[at], by_operation, index, table, ranks)
        for index, at in enumerate(np.flatnonzero(odd).tolist())
        if at in lost
    ]
    kept = [each for each in found if each["operation"] not in SECTIONS]
    kept.sort(key=lambda each: -float(str(each["lost_seconds"])))
    lost_seconds = sum(float(str(each["lost_seconds"])) for each in kept)
    return Events(tuple(kept[:MOST_LISTED]), lost_seconds, odd[step])


def _lost(first: Floats, last: Floats, spans: Floats, odd: Bools, usual: float) -> dict[int, float]:
    """Seconds that each odd step lost beyond the one before it, without those that lost hardly any.

    Where a rank pauses at the end of a step, its peers wait for it in the next one: both are long, and on
    each rank one. first, last: (step, rank), when it began and ended on the rank's clock.
    """
    found: dict[int, float] = {}
    for at in np.flatnonzero(odd).tolist():
        lost = alone = float(spans[at]) - usual
        if at - 1 in found:
            both = np.where(np.isfinite(first[at - 1]) & np.isfinite(last[at]), last[at] - first[at - 1], 0.0)
            lost = min(alone, float(both.max()) - 2.0 * usual - found[at - 1])
        if lost >= _MOSTLY * alone:
            found[at] = lost
    return found


class _Excess:
    """Seconds of each rank and operation in the steps of events, beyond what is usual."""

    def __init__(self, table: OperationTable, step: Ints, rank: Ints, odd: Bools, ranks: int) -> None:
        operations = len(table.operations)
        odd_steps, usual_steps = np.flatnonzero(odd), np.flatnonzero(~odd)
        place = np.cumsum(odd) - 1
        rows = np.flatnonzero(odd[step])
        operation = table.operation.astype(np.int64)
        cells = Groups.grid(
            (place[step[rows]], len(odd_steps)), (rank[rows], ranks), (operation[rows], operations)
        )
        taken = cells.sum(table.duration_seconds[rows]).reshape(len(odd_steps), ranks, operations)
        others = np.flatnonzero(~odd[step])
        usual = Groups.grid((rank[others], ranks), (operation[others], operations))
        mean = usual.sum(table.duration_seconds[others]) / max(1, len(usual_steps))
        self.seconds: Floats = taken - mean.reshape(ranks, operations)
        """(event, rank, operation)"""
        self.communicates = np.zeros(operations, dtype=np.bool_)
        self.communicates[table.operation[table.kind == Kind.COMMUNICATION]] = True


def _event(
    step: int, span: float, lost: float, excess: _Excess, index: int, table: OperationTable, ranks: Ints
) -> dict[str, object]:
    """What the step lost its time in: in the own work of ranks, or else in a transfer for which nobody came
    late. Where both are short, the ranks here waited for one that is not in the table.
    """
    own = np.where(excess.communicates[None], 0.0, excess.seconds[index])
    late = np.flatnonzero(own.sum(axis=1) >= _MOSTLY * lost)
    which = own[late].sum(axis=0) if late.size else excess.seconds[index].min(axis=0)
    if not late.size and not which.max() >= _MOSTLY * lost:
        which = excess.seconds[index].sum(axis=0)
    return {
        "step": step,
        "lost_seconds": lost,
        "step_seconds": span,
        "operation": table.operations[int(np.argmax(which))],
        "ranks": ranks[late].tolist(),
    }
