"""Seven training loops below `rankwatch run`, each beside the loop's own stopwatch and the bare loop."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.jobs.forked_ranks import ForkedRanks, forked_ranks
from support.loops.comparison import Losses, count, losses, misplaced_steps, same_bits
from support.loops.running import HERE, LOOPS, Loop, Way, run_loop, without_settings, zero_code

pytestmark = pytest.mark.e2e

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


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[Way, ForkedRanks]]:
    """Import torch once for all loops without rankwatch, and once for all below `rankwatch run`."""
    environ = {**without_settings(), "PYTHONPATH": str(HERE)}
    with forked_ranks(environ) as bare, forked_ranks(environ, prefix=zero_code(())) as zero:
        yield {Way.BARE: bare, Way.ZERO_CODE: zero}


@pytest.mark.parametrize("loop", [_case(each) for each in LOOPS.values()])
def test_loop(loop: Loop, servers: Mapping[Way, ForkedRanks], tmp_path: Path) -> None:
    """Training is the same bit for bit. Every step, loss, checkpoint and evaluation is recorded, no more.

    The first loop and those of frameworks run under torchrun, the others fork from where torch is imported.
    """
    ways = (Way.BARE, Way.ZERO_CODE)
    started = {} if loop.package else {**servers}
    if loop is LOOPS["nanogpt"]:
        del started[Way.ZERO_CODE]
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
