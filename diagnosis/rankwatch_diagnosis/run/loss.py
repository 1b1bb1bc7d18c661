"""The loss of a run out of its boxes, for the detector that the agent runs."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import LOSS
from rankwatch_diagnosis.loss.detection import Findings, detect
from rankwatch_diagnosis.loss.row import COLUMNS, Intake, Row
from rankwatch_diagnosis.run.box import Box
from rankwatch_diagnosis.run.boxes import Boxes

_SCALARS = (RecordKind.SCALAR,)


def judge_loss(boxes: Boxes) -> tuple[int, Findings] | None:
    """Rank and findings of the lowest rank that reports a loss; None where none does."""
    for rank, box in boxes.by_rank.items():
        if any(each.kind in _SCALARS and box.names.get(each.name) == LOSS for each in box.records):
            return rank, detect(_rows(box), Intake())
    return None


def _rows(box: Box) -> Iterator[Row]:
    step: int | None = None
    values: dict[str, float] = {}
    for record in box.records:
        name = box.names.get(record.name, "")
        if record.kind not in _SCALARS or name not in COLUMNS:
            continue
        value, number = layout.SCALAR.unpack_from(record.payload)
        if number != step:
            if step is not None:
                yield Row(step, **values)
            step, values = number, {}
        values[name] = value
    if step is not None:
        yield Row(step, **values)
