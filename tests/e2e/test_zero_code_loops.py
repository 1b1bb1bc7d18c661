"""Seven training loops below `rankwatch run`, each beside the loop's own stopwatch and the bare loop."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.loops.comparison import count, losses, misplaced_steps, same_bits
from support.loops.running import LOOPS, Loop, Way, run_loop

pytestmark = pytest.mark.e2e

STEPS = 12
PAUSE_MS = 1.0
_ROUNDING = 1e-6
"""Loops sum the losses of accumulated batches in another order, and in 32 bits."""


def _case(loop: Loop) -> object:
    absent = bool(loop.package) and importlib.util.find_spec(loop.package) is None
    marks = [
        pytest.mark.skipif(absent, reason=f"needs {loop.package}"),
        *([pytest.mark.frameworks] if loop.package else []),
    ]
    return pytest.param(loop, id=loop.name, marks=marks)


@pytest.mark.parametrize("loop", [_case(each) for each in LOOPS.values()])
def test_loop(loop: Loop, tmp_path: Path) -> None:
    """Training is the same bit for bit. Every step, loss, checkpoint and evaluation is recorded, no more."""
    bare = run_loop(loop, Way.BARE, tmp_path / "bare", steps=STEPS, pause_ms=PAUSE_MS)
    zero = run_loop(loop, Way.ZERO_CODE, tmp_path / "zero", steps=STEPS, pause_ms=PAUSE_MS)
    assert (bare.status, zero.status) == (0, 0), bare.stderr + zero.stderr
    assert same_bits(bare, zero)
    assert len(zero.boxes) == loop.ranks, zero.stderr
    for box, true in zip(zero.boxes, zero.witnessed, strict=True):
        assert misplaced_steps(box, true) == []
        assert box.errors == 0
        found = losses(box, true)
        assert (found.missing, found.furthest < _ROUNDING) == (0, True), found
    box, true = zero.boxes[0], zero.witnessed[0]
    assert len(box.checkpoints) == count(true.intervals, "checkpoint")
    assert count(box.intervals, "evaluation") == count(true.intervals, "evaluation")
