"""The rows of a rank's steps out of the records of its box."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES, TOKENS
from rankwatch.identity import Identity
from rankwatch_diagnosis.run.boxes import Box, read_box
from rankwatch_diagnosis.run.operation_table import rows_of


def box_of(directory: Path) -> Box:
    """Two steps of a second: forward, then backward with a bucket whose record comes after the step's."""
    writer = Writer(directory, Identity(run="job"), phases=PHASES, capacity=256)
    group, bucket = writer.new_name("default_pg"), writer.name_number("all_reduce")
    for step in (1, 2):
        at = float(100 + step)
        for name, start, end in (("forward", at, at + 0.3), ("backward", at + 0.3, at + 1.0)):
            number = writer.name_number(name)
            writer.append(RecordKind.PHASE, number, start, end, layout.STEP, 0, 0)
        tokens = writer.name_number(TOKENS)
        writer.append(RecordKind.WORK, tokens, at + 1.0, at + 1.0, layout.WORK, 64.0, step)
        writer.append(RecordKind.STEP, 0, at, at + 1.0, layout.STEP, step, 0)
        writer.append(
            RecordKind.COLLECTIVE,
            bucket,
            at + 0.7,
            at + 0.9,
            layout.COLLECTIVE,
            4096,
            step - 1,
            group,
            0,
            0.0,
        )
    writer.unlock()
    return read_box(writer.path, most_records=1000)


def test_a_collective_belongs_to_the_step_that_enqueued_it(tmp_path: Path) -> None:
    """Its end is recorded by another thread, here after the step; and the first step is left out."""
    box = box_of(tmp_path)
    rows = list(rows_of(box, {}))
    assert {row.step for row in rows} == {2}
    assert [(row.operation, row.kind) for row in rows] == [
        ("forward", "compute"),
        ("backward", "compute"),
        ("all_reduce", "communication"),
    ]
    assert [row.seconds for row in rows] == pytest.approx([0.3, 0.5, 0.2])
    assert [row.work for row in rows] == [64.0, 64.0, None]
