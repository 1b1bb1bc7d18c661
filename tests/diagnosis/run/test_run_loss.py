"""The loss of a run from its black boxes: that of earlier attempts tells what it should be."""

from __future__ import annotations

import math
from pathlib import Path

from rankwatch.blackbox import earlier_attempts
from rankwatch.conventions.vocabulary import DATASET, LOSS
from rankwatch_diagnosis.loss.anomaly import Kind, Severity
from rankwatch_diagnosis.run.engine import diagnose_run
from support.diagnosis.run_boxes import RankBox


def attempt(directory: Path, begin: int, level: float, *, other_data_at: int = -1) -> RankBox:
    """A box with 200 losses from a step on; on other data they are twice as high."""
    box = RankBox(directory, 0, world=1)
    for step in range(begin, begin + 200):
        if step == other_data_at:
            box.reports(DATASET, 2.0, step)
            level *= 2.0
        box.reports(LOSS, level + 0.02 * math.sin(7.0 * step), step)
    return box


def anomalies(directory: Path) -> list[tuple[Kind, Severity]]:
    """Of the loss of rank 0."""
    rank, loss = diagnose_run(directory).loss or (None, None)
    assert rank == 0 and loss is not None
    return [(each.kind, each.severity) for each in loss.anomalies]


def test_loss_after_a_bad_restart(tmp_path: Path) -> None:
    """A loss far above that of the attempt before is a divergence, where its box is kept; else it is not."""
    before = attempt(tmp_path, 0, 2.0)
    place = earlier_attempts.place_of(before.writer.path, 0)
    place.parent.mkdir()
    before.writer.path.rename(place)
    after = attempt(tmp_path, 200, 5.0)
    assert anomalies(tmp_path) == [(Kind.DIVERGENCE, Severity.CRITICAL)]
    place.unlink()
    assert anomalies(tmp_path) == []
    del after


def test_other_data(tmp_path: Path) -> None:
    """A jump where the run says that its data are others is no divergence."""
    box = attempt(tmp_path, 0, 2.0, other_data_at=100)
    assert anomalies(tmp_path) == []
    del box
