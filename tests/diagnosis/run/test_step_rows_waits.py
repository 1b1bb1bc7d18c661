"""Rows of collectives of which the box tells since when a thread waited, or that their end was not seen."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES
from rankwatch.identity import Identity
from rankwatch_diagnosis.run.boxes import read_box
from rankwatch_diagnosis.run.operation_table import rows_of


def rows(directory: Path, collectives: list[tuple[float, float, float, int]]) -> list[tuple[str, float]]:
    """(operation, seconds) of a step of one second, all forward; collectives: start, end, waited, flags."""
    writer = Writer(directory, Identity(run="job"), phases=PHASES, capacity=256)
    group, name, forward = (writer.name_number(each) for each in ("tp", "all_reduce", "forward"))
    writer.append(RecordKind.STEP, 0, 99.0, 100.0, layout.STEP, 0, 0)
    for number, (start, end, waited, flags) in enumerate(collectives):
        payload = (64, number, group, flags, 100.0 + waited if waited else 0.0)
        writer.append(RecordKind.COLLECTIVE, name, 100.0 + start, 100.0 + end, layout.COLLECTIVE, *payload)
    writer.append(RecordKind.PHASE, forward, 100.0, 101.0, layout.STEP, 0, 0)
    writer.append(RecordKind.STEP, 0, 100.0, 101.0, layout.STEP, 1, 0)
    writer.unlock()
    box = read_box(writer.path, most_records=100)
    return [(row.operation, row.seconds) for row in rows_of(box, {group: "tp"})]


def test_each_wait_that_was_seen_is_communication(tmp_path: Path) -> None:
    """From its begin, not from the enqueue; several in one phase."""
    found = rows(tmp_path, [(0.1, 0.4, 0.2, 0), (0.5, 0.8, 0.7, 0)])
    assert [operation for operation, _ in found] == ["forward", "all_reduce", "all_reduce"]
    assert [seconds for _, seconds in found] == pytest.approx([0.7, 0.2, 0.1])


@pytest.mark.parametrize("waited", [0.05, 0.9, math.nan])
def test_a_wait_that_cannot_be_is_left_out_of_account(waited: float, tmp_path: Path) -> None:
    """The estimate for asynchronous ones holds then."""
    (_, own), (operation, seconds) = rows(tmp_path, [(0.1, 0.4, waited, 0)])
    assert (operation, own, seconds) == ("all_reduce", pytest.approx(0.7), pytest.approx(0.3))


def test_a_collective_without_a_known_end_has_no_row(tmp_path: Path) -> None:
    """A row of no seconds would make it infinitely fast."""
    assert rows(tmp_path, [(0.5, 0.5, 0.0, layout.UNTIMED)]) == [("forward", pytest.approx(1.0))]
