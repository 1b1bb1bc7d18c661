"""The losses of a run from its boxes: those of several ranks, and those of its earlier attempts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.blackbox import earlier_attempts, layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import DATASET, LOSS, TOKENS
from rankwatch_diagnosis.loss.anomaly import Kind, Severity
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.losses import RankLosses
from rankwatch_diagnosis.run.report import lines
from support.diagnosis.run_boxes import RankBox

STEPS = 100


def losses(
    directory: Path,
    loss: Callable[[int, int], float],
    *,
    world: int = 4,
    tokens: dict[int, float] | None = None,
) -> list[RankBox]:
    """Boxes whose ranks report these losses, by rank and step, and as many tokens a step."""
    boxes = [RankBox(directory, rank, world=world) for rank in range(world)]
    for rank, box in enumerate(boxes):
        work = box.writer.name_number(TOKENS)
        for step in range(STEPS):
            box.reports(LOSS, loss(rank, step), step)
            if tokens is not None:
                amount, at = tokens.get(rank, 64.0), box.now
                box.writer.append(RecordKind.WORK, work, at, at, layout.WORK, amount, step)
    return boxes


def compared(directory: Path, loss: Callable[[int, int], float], **how: object) -> RankLosses:
    boxes = losses(directory, loss, **how)  # type: ignore[arg-type]
    found = diagnose_run(directory).losses
    assert boxes
    return found


def test_first_rank_that_is_not_finite(tmp_path: Path) -> None:
    """After the next exchange of gradients all have it: the one before that is to blame."""
    boxes = losses(tmp_path, lambda rank, step: math.nan if step > 50 or (rank, step) == (2, 50) else 2.0)
    verdict = diagnose_run(tmp_path)
    assert verdict.losses == RankLosses(50, (2,), {})
    assert "not finite first on rank 2, at step 50" in "\n".join(lines(verdict))
    assert boxes


def test_all_at_once(tmp_path: Path) -> None:
    """A learning rate that is too high is nobody's."""
    assert compared(tmp_path, lambda _, step: math.inf if step >= 50 else 2.0) == RankLosses(50, (), {})


def test_other_data(tmp_path: Path) -> None:
    """Half above that of its peers, step after step, with noise."""
    found = compared(
        tmp_path, lambda rank, step: (3.0 if rank == 1 else 2.0) + 0.2 * math.sin(7 * step + rank), tokens={}
    )
    assert list(found.skewed_ranks) == [1]
    assert found.skewed_ranks[1] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize(
    ("world", "tokens"),
    [(4, None), (2, {}), (4, {1: 96.0})],
    ids=["tokens unknown", "two ranks", "more tokens"],
)
def test_nobody_is_named(world: int, tokens: dict[int, float] | None, tmp_path: Path) -> None:
    """What more tokens explain, what nobody can tell, and what only one other rank shows."""
    found = compared(tmp_path, lambda rank, _: 3.0 if rank == 1 else 2.0, world=world, tokens=tokens)
    assert found == RankLosses(None, (), {})


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


def test_declared_change_of_data(tmp_path: Path) -> None:
    """A jump where the run says that its data are others is no divergence."""
    box = attempt(tmp_path, 0, 2.0, other_data_at=100)
    assert anomalies(tmp_path) == []
    del box
