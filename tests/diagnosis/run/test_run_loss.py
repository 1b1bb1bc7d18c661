"""The loss of a run from its black boxes: that of earlier attempts tells what it should be."""

from __future__ import annotations

import math
from pathlib import Path

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import DATASET, LOSS
from rankwatch_diagnosis.loss.anomaly import Kind, Severity
from rankwatch_diagnosis.run.engine import diagnose_run
from support.diagnosis.run_boxes import RankBox


def attempt(directory: Path, begin: int, level: float, *, other_data_at: int = -1) -> RankBox:
    """A box with 200 losses from a step on; on other data they are twice as high."""
    box = RankBox(directory, 0, world=1)
    number = box.writer.name_number(LOSS)
    for step in range(begin, begin + 200):
        at = box.now - 500.0 + step
        if step == other_data_at:
            data = box.writer.name_number(DATASET)
            box.writer.append(RecordKind.SCALAR, data, at, at, layout.SCALAR, 2.0, step)
            level *= 2.0
        loss = level + 0.02 * math.sin(7.0 * step)
        box.writer.append(RecordKind.SCALAR, number, at, at, layout.SCALAR, loss, step)
    return box


def test_loss_after_a_bad_restart(tmp_path: Path) -> None:
    """A loss far above that of the attempt before is a divergence, where its box is kept; else it is not."""
    before = attempt(tmp_path, 0, 2.0)
    place = earlier_attempts.place_of(before.writer.path, 0)
    place.parent.mkdir()
    before.writer.path.rename(place)
    after = attempt(tmp_path, 200, 5.0)
    rank, loss = diagnose_run(tmp_path).loss or (None, None)
    assert rank == 0
    assert loss is not None
    (found,) = loss.anomalies
    assert (found.kind, found.severity) == (Kind.DIVERGENCE, Severity.CRITICAL)
    place.unlink()
    _, alone = diagnose_run(tmp_path).loss or (None, None)
    assert alone is not None
    assert alone.anomalies == ()
    del after


def test_other_data(tmp_path: Path) -> None:
    """A jump where the run says that its data are others is no divergence."""
    box = attempt(tmp_path, 0, 2.0, other_data_at=100)
    _, loss = diagnose_run(tmp_path).loss or (None, None)
    assert loss is not None
    assert loss.anomalies == ()
    del box
