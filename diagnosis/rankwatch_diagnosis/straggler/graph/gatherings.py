"""Who gathers in a collective, where groups are not told or one name stands for many of them.

Members of a blocking collective leave it at the same moment, so whoever comes later by a second spends a
second less there. Whoever meets others spends what it spends, whenever it comes. Clocks need not agree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, combine, grouped_median

_ONE_FOR_ONE = (0.7, 1.3)
"""Seconds later for each second less: 1 for members, whatever clocks do."""
_TOGETHER = 0.15
_APART = 0.05
"""Part of the variance of coming that staying explains: all of it for members, but for clocks that vary, and
nothing for strangers. What lies between changes nothing of what the table says."""


def parts(table: OperationTable, rows: Ints, kind: Ints, left: Floats, came: Floats) -> Ints:
    """By row of collectives: 0 where all ranks of its kind gather, or else a number for its part of them.

    `kind` numbers what is the same in every step: the group (one number for none), the operation and which
    of its runs in the step it is. `left` and `came` are seconds of the rank's clock.
    """
    stages, stage = codes(table.stage[rows])
    blocks, block = codes(combine((stage, len(stages)), codes_of(table.replica[rows])))
    step = codes(table.step[rows])[1]
    named = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[rows]]
    nobody = np.zeros(len(rows), dtype=np.int64)
    part = nobody.copy()
    if len(stages) > 1:
        # Without a name, the ranks of a stage gather; all of them only where that shows.
        told = _explained(kind, step, nobody, stage, left, came)
        apart = np.where(named, told.share < _APART, ~(told.least > _TOGETHER))
        part = np.where(apart, 1 + stage, 0)
    if _of_several_ranks(table, rows, block) and len(blocks) > len(stages):
        told = _explained(kind, step, stage, block, left, came)
        alone = (part > 0) | (len(stages) == 1)
        part = np.where(alone & (told.share < _APART), 1 + len(stages) + block, part)
    return part


def places(table: OperationTable, rows: Ints) -> Ints:
    """The same by the table alone: without a name, the ranks of a stage gather."""
    stages, stage = codes(table.stage[rows])
    named = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[rows]]
    return np.where(named | (len(stages) == 1), 0, 1 + stage)


def codes_of(values: NDArray[np.integer]) -> tuple[Ints, int]:
    """Codes of a column, and how many there are."""
    distinct, code = codes(values)
    return code, len(distinct)


def _of_several_ranks(table: OperationTable, rows: Ints, block: Ints) -> bool:
    """Whether ranks share stage and replica, as those of tensor parallelism do."""
    pairs = np.unique(combine((block, int(block.max()) + 1), codes_of(table.rank[rows])))
    ranks = len(np.unique(table.rank[rows]))
    return len(pairs) == ranks and ranks > int(block.max()) + 1


class _Explained(NamedTuple):
    """By row: part of the variance of coming that staying explains, second for second."""

    share: Floats
    least: Floats
    """The lower one of even and of odd steps: among many collectives some fit by chance, but not twice."""


def _explained(kind: Ints, step: Ints, within: Ints, unit: Ints, left: Floats, came: Floats) -> _Explained:
    """Of each kind, its units against each other, compared `within`."""
    counts = [int(each.max()) + 1 for each in (kind, within, step, unit)]
    cells, cell = codes(combine(*zip((kind, within, step, unit), counts, strict=True)))
    _, meeting = codes(cells // counts[3])
    places, place = codes(cells // counts[3] // counts[2])
    homes, home = codes(place * counts[3] + cells % counts[3])
    kinds, of_kind = codes(cells // counts[3] // counts[2] // counts[1])
    size = np.bincount(cell)
    # Steps count in which everybody is seen: clocks differ, and who is left out would shift the means.
    lacks = (size < _most(size, home, len(homes))[home]) * 1.0
    units = np.bincount(meeting)
    lacks += (units < _most(units, place[_first(meeting)], len(places))[place[_first(meeting)]])[meeting]
    whole = ((np.bincount(meeting, weights=lacks) == 0.0) & (units > 1))[meeting]

    def deviation(seconds: Floats) -> Floats:
        mean = np.bincount(cell, weights=seconds) / size
        against = np.where(whole, mean - (np.bincount(meeting, weights=mean) / units)[meeting], np.nan)
        steady = grouped_median(against, home, len(homes))[home]
        return np.nan_to_num(against - steady)

    stay, coming = deviation(left - came), deviation(came)
    share = _share(stay, coming, of_kind, len(kinds))
    half = cells // counts[3] % counts[2] % 2
    halves = _share(stay, coming, of_kind * 2 + half, 2 * len(kinds)).reshape(len(kinds), 2)
    return _Explained(share[of_kind[cell]], halves.min(axis=1)[of_kind[cell]])


def _share(stay: Floats, coming: Floats, group: Ints, count: int) -> Floats:
    """By group: how much of `coming` goes with `stay`; 0 where it is not second for second."""
    both = -np.bincount(group, weights=stay * coming, minlength=count)
    stays, comes = (np.bincount(group, weights=each * each, minlength=count) for each in (stay, coming))
    seen = (stays > 0.0) & (comes > 0.0)
    slope = np.divide(both, stays, out=np.full(count, np.nan), where=seen)
    share: Floats = np.divide(both, comes, out=np.full(count, np.nan), where=seen) * slope
    share[seen & ((slope < _ONE_FOR_ONE[0]) | (slope > _ONE_FOR_ONE[1]))] = 0.0
    return share


def _most(values: Ints, group: Ints, count: int) -> Ints:
    """Largest value of each group."""
    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, group, values)
    return most


def _first(group: Ints) -> Ints:
    """Index of a value of each group 0, 1, ..."""
    return np.unique(group, return_index=True)[1]
