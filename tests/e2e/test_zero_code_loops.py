"""Training loops below `rankwatch run`, ordinary ones and hostile ones, each beside the bare loop."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.jobs.forked_ranks import ForkedRanks, shared_ranks
from support.loops.comparison import Losses, count, losses, misplaced_steps, same_bits
from support.loops.recorded import recorded
from support.loops.running import HERE, LOOPS, Loop, Way, run_forked, run_loop

pytestmark = pytest.mark.process

STEPS = 12


def _case(loop: Loop) -> object:
    absent = bool(loop.package) and importlib.util.find_spec(loop.package) is None
    marks = [
        pytest.mark.skipif(absent, reason=f"needs {loop.package}"),
        *([pytest.mark.frameworks] if loop.package else []),
    ]
    if loop.package:  # frameworks take long to import, and have tests of their own on two ranks
        loop = loop._replace(ranks=1)
    return pytest.param(loop, id=loop.name, marks=marks)


LAUNCHED = "nanogpt"
"""The loop that starts as users start theirs: `rankwatch run -- torchrun`, DDP, an optimizer of torch."""


def servers() -> Mapping[Way, ForkedRanks]:
    """What forks the ranks of loops without rankwatch, and of those below `rankwatch run`."""
    return {Way.BARE: shared_ranks(), Way.ZERO_CODE: shared_ranks(recorded=True)}


@pytest.mark.parametrize("loop", [_case(each) for each in LOOPS.values()])
def test_loop(loop: Loop, tmp_path: Path) -> None:
    """Training is the same bit for bit. The recorded steps, losses, checkpoints and evaluations are those of
    the loop's own stopwatch. The loops of frameworks and one more run under torchrun, the others fork from
    where torch is imported."""
    ways = (Way.BARE, Way.ZERO_CODE)
    started = {} if loop.package or loop.name == LAUNCHED else servers()
    with ThreadPoolExecutor(2) as pool:
        bare, zero = pool.map(
            lambda way: run_loop(
                loop, way, tmp_path / way, steps=STEPS, pause_ms=0.0, server=started.get(way)
            ),
            ways,
        )
    assert (bare.status, zero.status) == (0, 0), bare.stderr + zero.stderr
    assert same_bits(bare, zero)
    assert len(zero.boxes) == loop.ranks, zero.stderr
    for box, true in zip(zero.boxes, zero.witnessed, strict=True):
        assert misplaced_steps(box, true) == []
        assert box.errors == 0, zero.stderr
        assert losses(box, true) == Losses(missing=0, equal=STEPS, furthest=0.0)
    box, true = zero.boxes[0], zero.witnessed[0]
    assert len(box.checkpoints) == count(true.intervals, "checkpoint")
    assert count(box.intervals, "evaluation") == count(true.intervals, "evaluation")


@pytest.mark.parametrize(
    ("case", "steps", "ended_by"),
    [
        ("trains_in_a_thread", 6, "finished"),
        ("failing_user_code", 6, "finished"),
        ("replaced_by_others", 24, "finished"),
        ("ends_by_exception", 6, "failed"),
    ],
)
def test_hostile_loop(case: str, steps: int, ended_by: str, tmp_path: Path) -> None:
    """Losses, exceptions and status are those of the bare loop. Steps are exact, nothing of ours fails."""
    variables = {"RANKWATCH_DIR": str(tmp_path), "RANKWATCH_RUN": case, "RANKWATCH_SUMMARY": "0"}
    command = [str(HERE / "hostile.py"), case]
    bare, zero = (
        run_forked(server, command, variables, tmp_path / f"{way}.log") for way, server in servers().items()
    )
    said = [line for line in zero.stderr.splitlines() if not line.startswith("rankwatch: ")]
    assert said == bare.stderr.splitlines()
    assert zero.returncode == bare.returncode
    (box,) = map(recorded, tmp_path.glob("*/*.blackbox"))
    assert (box.steps_completed, box.ended_by, box.errors) == (steps, ended_by, 0)
