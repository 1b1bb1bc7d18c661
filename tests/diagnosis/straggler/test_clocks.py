"""Hosts share no clock: whoever meets leaves together, and that makes one clock of many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.clocks import align_clocks
from rankwatch_diagnosis.straggler.graph.collectives import match_communication
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from support.diagnosis.operations import SmallJob


def on_clocks_of_their_own(table: OperationTable, seconds: float, drift: float) -> OperationTable:
    """Each rank's clock is off by up to `seconds`, and gains up to `drift` seconds in a second."""
    random = np.random.default_rng(5)
    ranks = int(table.rank.max()) + 1
    offset = random.uniform(-seconds, seconds, ranks)[table.rank]
    rate = 1.0 + random.uniform(-drift, drift, ranks)[table.rank]
    start = offset + rate * table.start_seconds
    return replace(table, start_seconds=start, duration_seconds=rate * table.duration_seconds)


@pytest.mark.parametrize("drift", [0.0, 2e-5])
@pytest.mark.parametrize("messages", [True, False])
def test_aligned(messages: bool, drift: float) -> None:
    """Offsets of seconds go: between any two ranks of a step less than a millisecond is left."""
    table = SmallJob(dp=4, pp=3, steps=6, with_messages=messages).table()
    off = on_clocks_of_their_own(table, 5.0, drift)
    aligned = align_clocks(off, match_communication(off))
    assert len(np.unique(aligned.clock)) == len(np.unique(table.step))
    shift = aligned.table.start_seconds - table.start_seconds
    for step in np.unique(table.step):
        assert np.ptp(shift[table.step == step]) < 1e-3


def test_shared_clock_stays() -> None:
    """A table whose ranks share a clock is left as it is."""
    table = SmallJob(dp=4, pp=3, steps=4).table()
    assert align_clocks(table, match_communication(table)).table is table


def test_same_replay() -> None:
    """Steps take as long by any clocks."""
    table = SmallJob(dp=4, pp=3, steps=6).table()
    one, other = (Case(each, DEFAULT) for each in (table, on_clocks_of_their_own(table, 5.0, 0.0)))
    assert other.step_seconds == pytest.approx(one.step_seconds, rel=0.01)
