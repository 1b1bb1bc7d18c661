"""The table of ranks that `diagnose straggler --by-rank` prints; it fits into 80 columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rankwatch_diagnosis.straggler.by_rank import ByRank, RankRow

_BOTTOM_SHARE = 4
"""Of the rows shown, the part that goes to the ranks with the lowest residual: a quarter."""


class _Column(NamedTuple):
    head: str
    cell: Callable[[RankRow], str]


def rank_lines(found: ByRank, most: int) -> Iterator[str]:
    """Yield a line for each rank; of more than `most` the first and last ones, with the number left out."""
    rows = found.rows
    bottom = most // _BOTTOM_SHARE if len(rows) > most else 0
    shown = (*rows[: most - bottom], *rows[len(rows) - bottom :])
    head, *lines = _aligned(_columns(rows), shown)
    yield f"ranks, in ms of a step of {_milliseconds(found.step_seconds)} ms (! marks those that are named):"
    yield head
    yield from lines[: most - bottom]
    if len(rows) > len(shown):
        yield f"  and {len(rows) - len(shown):,} more in between; --json has them all"
    yield from lines[most - bottom :]
    yield "residual: own work beyond the peers' (worst: in these steps); net: transfers;"
    yield "wait: for other ranks, and pauses; cost: lost by the run through this rank alone"
    yield from _notes(rows)


def _aligned(columns: Sequence[_Column], rows: Sequence[RankRow]) -> list[str]:
    cells = [[each.head for each in columns], *([each.cell(row) for each in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _columns(rows: Sequence[RankRow]) -> list[_Column]:
    """Return the columns, without those that say nothing in this job."""
    columns = [
        _Column("", lambda row: "!" if row.named else ""),
        _Column("rank", lambda row: str(row.rank)),
    ]
    if len({row.stage for row in rows}) > 1:
        columns.append(_Column("stage", lambda row: str(row.stage)))
    if len({row.replica for row in rows}) > 1 and any(row.replica != row.rank for row in rows):
        columns.append(_Column("repl", lambda row: str(row.replica)))
    columns += [
        _Column("residual", lambda row: _signed(row.residual_ratio)),
        _Column("worst", lambda row: _signed(row.worst_residual_ratio)),
        _Column("steps", lambda row: f"{row.worst_first_step}-{row.worst_last_step}"),
        _Column("compute", lambda row: _milliseconds(row.compute_seconds)),
    ]
    if any(row.data_loading_seconds for row in rows):
        columns.append(_Column("load", lambda row: _milliseconds(row.data_loading_seconds)))
    if any(row.other_seconds for row in rows):
        columns.append(_Column("other", lambda row: _milliseconds(row.other_seconds)))
    return [
        *columns,
        _Column("net", lambda row: _milliseconds(row.transfer_seconds)),
        _Column("wait", lambda row: _milliseconds(row.wait_seconds)),
        _Column("cost", lambda row: "-" if math.isnan(row.slowdown) else f"{row.slowdown - 1.0:.1%}"),
    ]


def _notes(rows: Sequence[RankRow]) -> Iterator[str]:
    compared = {row.compared_with for row in rows}
    if "one peer" in compared:
        yield "two ranks of a stage are compared with each other: neither can be called the odd one"
    if "its own past" in compared:
        yield "a rank alone in its stage is compared with its own past"
    if any(math.isnan(row.slowdown) for row in rows):
        yield "-: too little beyond its peers to be replayed among so many ranks"


def _signed(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:+.1%}"


def _milliseconds(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.1f}" if milliseconds < 1e3 else f"{milliseconds:.0f}"
