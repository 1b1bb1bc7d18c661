"""The table of operations of a run, from its black boxes. Needs NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankwatch.blackbox.layout import RecordKind
from rankwatch_diagnosis.operations.table import NO_PEER, Kind, OperationTable
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_run
from rankwatch_diagnosis.run.step_rows import Row, rows_by_rank

MOST_ROWS = 3_000_000
"""The newest steps; the straggler engine takes about 400 bytes for each row."""
_STAGE, _REPLICA = "pp", "dp"


class _Rank(NamedTuple):
    rank: int
    stage: int
    replica: int
    start_of_clock: float
    """Seconds that turn its monotonic clock into seconds since the run's first start."""
    rows: Sequence[Row]
    on_device: bool
    """Whether the rows are those of a GPU's compute stream, on which every wait is timed."""


def table_of_run(directory: Path) -> OperationTable:
    """Return all steps of the run in this directory, which may be a bundle. Raise UserError without a box."""
    *_, boxes = read_run(directory)
    return operation_table(boxes, rows_by_rank(boxes))


def operation_table(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> OperationTable:
    """Return the steps that at least half of the ranks hold. The wall clock in each box aligns the hosts.

    rows: of each rank, as `rows_by_rank` makes them.
    """
    first = min(each.header.started_wall for each in boxes.by_rank.values())
    ranks = [_rank(box, rows[rank], first) for rank, box in boxes.by_rank.items()]
    kept = _steps(ranks)
    ranks = [each._replace(rows=[row for row in each.rows if row.step in kept]) for each in ranks]
    complete = sum(bool(each.rows) for each in ranks) == boxes.world_size
    return replace(_table(ranks), complete=complete)


def _rank(box: Box, rows: Sequence[Row], first_wall: float) -> _Rank:
    identity = box.header.identity
    # Without coordinates a run is data parallel, so that every rank has microbatches of its own.
    replica = identity.coordinates.get(_REPLICA, (0 if identity.coordinates else identity.rank, 0))[0]
    return _Rank(
        rank=identity.rank,
        stage=identity.coordinates.get(_STAGE, (0, 1))[0],
        replica=replica,
        start_of_clock=box.wall(0.0) - first_wall,
        rows=rows,
        on_device=any(each.kind == RecordKind.DEVICE_STEP for each in box.records),
    )


def _steps(ranks: Sequence[_Rank]) -> set[int]:
    """Return steps of at least half of the ranks that have any, newest first as far as rows allow."""
    rows: Counter[int] = Counter()
    holders: Counter[int] = Counter()
    having = 0
    for each in ranks:
        of_rank = Counter(row.step for row in each.rows)
        rows.update(of_rank)
        holders.update(of_rank.keys())
        having += bool(of_rank)
    kept: set[int] = set()
    total = 0
    for step in sorted(rows, reverse=True):
        if 2 * holders[step] < having:
            continue
        total += rows[step]
        if total > MOST_ROWS:
            break
        kept.add(step)
    return kept


def _messages(row: Row) -> Iterator[Row]:
    """Yield the row, or one for each message of its batch, which begin and end together."""
    if not row.messages:
        yield row
    for each in row.messages:
        yield row._replace(operation=each.operation, messages=(each,))


def _table(ranks: Sequence[_Rank]) -> OperationTable:
    operations: dict[str, int] = {}
    groups: dict[str, int] = {"": 0}
    kinds = {kind.name.lower(): int(kind) for kind in Kind}
    parts = [[part for row in each.rows for part in _messages(row)] for each in ranks]
    rows = [row for of_rank in parts for row in of_rank]
    lengths = [len(of_rank) for of_rank in parts]

    def by_rank(values: list[float]) -> np.ndarray:
        return np.repeat(np.array(values), lengths)

    starts = np.array([row.start for row in rows], dtype=np.float64)
    peers = [row.messages[0].peer if row.messages else NO_PEER for row in rows]
    with_peers = any(row.messages for row in rows)
    work = [np.nan if row.work is None else row.work for row in rows]
    return OperationTable(
        step=np.array([row.step for row in rows], dtype=np.int64),
        rank=by_rank([each.rank for each in ranks]).astype(np.int64),
        operation=np.array(
            [operations.setdefault(r.operation, len(operations)) for r in rows], dtype=np.int32
        ),
        kind=np.array([kinds[row.kind] for row in rows], dtype=np.int8),
        start_seconds=starts + by_rank([each.start_of_clock for each in ranks]),
        duration_seconds=np.array([row.seconds for row in rows], dtype=np.float64),
        stage=by_rank([each.stage for each in ranks]).astype(np.int32),
        replica=by_rank([each.replica for each in ranks]).astype(np.int32),
        microbatch=np.array([row.microbatch for row in rows], dtype=np.int32),
        group=np.array([groups.setdefault(row.group, len(groups)) for row in rows], dtype=np.int32),
        work=np.array(work, dtype=np.float64),
        operations=tuple(operations),
        groups=tuple(groups),
        peer=np.array(peers, dtype=np.int64) if with_peers else None,
        ahead_seconds=np.array([row.ahead for row in rows], dtype=np.float64) if with_peers else None,
        waits_known=all(each.on_device for each in ranks),
    )
