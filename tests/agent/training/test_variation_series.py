"""A real rank with unequal microbatches and a late step, as the agent exports it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import rank, values

_OWN_TIME = """
import rankwatch.steps
moment = time.monotonic()
def sleep(seconds):
    global moment
    moment += seconds
time.sleep, time.monotonic = sleep, lambda: moment
rankwatch.steps._clock = time.monotonic
"""
"""The rank's time passes only while it sleeps: a busy machine would make its microbatches unequal too."""

_UNEQUAL = """
for number in range(12):
    with run.step():
        for factor in (1, 3):
            with run.phase("forward"): time.sleep(0.004 * factor)
            with run.phase("backward"): time.sleep(0.008 * factor)
        if number == 10:
            with run.phase("data_wait"): time.sleep(0.5)
        run.work(tokens=64)
with run.evaluation(): ready()
"""


def _series(tmp_path: Path, code: str) -> Collection:
    """What the agent exports once the last step is settled, some half a second after its end."""
    with rank(tmp_path, code, before=_OWN_TIME):
        collector = RanksCollector(directory=tmp_path, monotonic=lambda: time.monotonic() + 60.0)
        return collector.collect()


def test_unequal_microbatches_covary_and_the_late_step_is_counted(tmp_path: Path) -> None:
    """One forward and backward are three times as long as the others: a variance of 0.5, all of it shared."""
    found = _series(tmp_path, _UNEQUAL)
    steps = values(found, "rankwatch_steps_total")["job", "0"]
    assert values(found, "rankwatch_step_microbatches_total")["job", "0"] == 2 * steps
    assert values(found, "rankwatch_late_steps_total")["job", "0"] == 1
    assert values(found, "rankwatch_late_step_seconds_total")["job", "0"] == pytest.approx(0.5)
    terms = {labels[2]: value / steps for labels, value in _terms(found).items()}
    shared = (terms["forward_and_backward"] - terms["forward"] - terms["backward"]) / 2
    assert (terms["forward"], terms["backward"], shared) == pytest.approx((0.5, 0.5, 0.5))


def test_a_rank_with_one_microbatch_and_no_work_has_no_terms(tmp_path: Path) -> None:
    """What cannot be told has no series."""
    found = _series(tmp_path, "for _ in range(12):\n    with run.step(): pass\nready()")
    assert _terms(found) == {}
    assert values(found, "rankwatch_step_microbatches_total") == {("job", "0"): 0}


def _terms(collection: Collection) -> dict[tuple[str, ...], float]:
    return values(collection, "rankwatch_step_variation_total")
