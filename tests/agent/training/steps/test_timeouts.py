"""What a rank teaches about how long it may stand still."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.steps.timeouts import (
    FACTOR,
    LONGEST_FACTOR,
    SKIPPED_STEPS,
    LearntTimeouts,
    Longest,
)
from support.agent.process import until
from support.training.ranks import go_on, kill, rank, settled, values

TIMEOUT = "rankwatch_progress_timeout_seconds"


def _after(*steps: float) -> LearntTimeouts:
    """A process that made its first steps in 10 s each, and then these."""
    progress, moment = LearntTimeouts(), 0.0
    progress.begin_process(moment)
    for seconds in (*[10.0] * SKIPPED_STEPS, *steps):
        moment += seconds
        progress.step(seconds, moment)
    return progress


NORMAL = [1.0] * 50
MINUTES = [[1.0] * count for count in (99, 105, 7)]
DIFFER = [(10, 20.0), (11, 20.0), (40, 20.0), (20, 21.0), (90, 20.0)]


@pytest.mark.parametrize(
    ("steps", "longest"),
    [
        ([1.0, 2.0, 2.0], 2.0),
        ([*NORMAL, 1200.0, *NORMAL, 900.0, *NORMAL], 1.0),
        ([*NORMAL, 1200.0, 700.0, *NORMAL, 40.0, *NORMAL, *NORMAL, 90.0, *NORMAL, 300.0, 1200.0], 1.0),
        ([*NORMAL, 8.0, 8.5], 1.0),
        ([*NORMAL, 8.0, 8.5, 9.0], 8.5),
        ([*MINUTES[0], 60.0, *MINUTES[0], 55.0, *MINUTES[0], 70.0], 60.0),
        ([*MINUTES[0], 60.0, *MINUTES[0], 55.0, *MINUTES[1], 70.0], 60.0),
        ([*MINUTES[2], 60.0, *MINUTES[2], 55.0, *MINUTES[2], 70.0], 60.0),
        ([1.0, *(each for count, long in DIFFER for each in (*[1.0] * count, long))], 20.0),
        ([1.0, *(each for count, long in DIFFER for each in (*[1.0] * (9 * count), long))], 1.0),
    ],
    ids=[
        "the first steps of a process are left out",
        "a stall of twenty minutes must not allow the next one a hundred",
        "however often a run stalls",
        "two steps of a new length are no lesson",
        "the third in a row is one",
        "what comes at even distances and takes about as long is a routine, as an unmarked evaluation",
        "also at about even distances",
        "also at short distances",
        "five alike at odd distances are part of the run, as where batches differ",
        "five in thousands are not",
    ],
)
def test_step_timeout(steps: list[float], longest: float) -> None:
    """The longest step times five is the timeout."""
    assert _after(*steps).timeout(None) == FACTOR * longest


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_stall_in_a_section(phase: str) -> None:
    """One of an hour raises the timeout to three times what is normal, not to an hour and a half."""
    progress = _after(1.0, 1.0)
    for seconds in (30.0, 30.0, 3600.0, 30.0):
        progress.section(phase, seconds)
    assert progress.timeout(phase) == 3.0 * FACTOR * 30.0 + FACTOR * 1.0


def test_failed_step() -> None:
    """A step that an exception ended is no lesson. It holds the timeout of a collective."""
    progress = _after(1.0, 1.0)
    for ended in (2000.0, 4000.0, 6000.0):  # the third in a row would be a lesson
        progress.step_failed(ended)
        progress.step(1800.0, ended)
    assert progress.timeout(None) == FACTOR * 1.0


def test_first_start() -> None:
    """While a first process starts nothing is known. Compilation has no history."""
    progress = LearntTimeouts()
    progress.begin_process(0.0)
    for ended in (100.0, 101.0, 102.0, 103.0, 104.0):
        assert progress.timeout(None) is None
        progress.step(1.0, ended)
    progress.step(1.0, 105.0)
    assert progress.timeout(None) == FACTOR * 1.0


def test_restart() -> None:
    """A restart is allowed what starts have taken, through its first steps; then the steps count again."""
    progress = _after(1.0, 1.0)
    progress.begin_process(1000.0)
    assert progress.timeout(None) == FACTOR * 10.0
    progress.step(300.0, 1300.0)
    assert progress.timeout(None) == FACTOR * 10.0
    for ended in (1301.0, 1302.0, 1303.0, 1304.0):
        progress.step(1.0, ended)
    assert progress.timeout(None) == FACTOR * 1.0
    progress.begin_process(2000.0)
    assert progress.timeout(None) == max(FACTOR * 10.0, LONGEST_FACTOR * 300.0)


def test_step_of_previous_process() -> None:
    """It is settled only when the new process has begun, and is none of the start."""
    progress = _after(1.0, 1.0)
    progress.begin_process(1000.0)
    progress.step(1.0, 999.0)
    for number in range(SKIPPED_STEPS - 1):
        progress.step(1.0, 1001.0 + number)
    assert progress.timeout(None) == FACTOR * 10.0, "one step of the start is still to come"


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_section_timeout(phase: str) -> None:
    """It is unknown until the first one has ended; the single longest is allowed half as much again."""
    progress = _after(1.0, 1.0)
    assert progress.timeout(phase) is None
    progress.section(phase, 30.0)
    assert progress.timeout(phase) == FACTOR * 30.0 + FACTOR * 1.0
    progress.section(phase, 300.0)
    assert progress.timeout(phase) == LONGEST_FACTOR * 300.0 + FACTOR * 1.0
    assert progress.timeout("forward") == FACTOR * 1.0


def test_load_at_restart() -> None:
    """It belongs to the start: checkpoints are loaded more slowly than they are saved, or never were."""
    progress = _after(1.0, 1.0)
    progress.begin_process(1000.0)
    assert progress.timeout("checkpoint") == FACTOR * 10.0
    progress.section("checkpoint", 2.0)
    assert progress.timeout("checkpoint") == FACTOR * 10.0 + FACTOR * 2.0


def test_invalid_times() -> None:
    """Times that are none teach nothing. Records may hold anything."""
    longest = Longest()
    for seconds in (-1.0, math.nan, math.inf):
        longest.add(seconds)
    assert longest.timeout() is None


def _timeout(collector: RanksCollector, steps: int) -> float:
    """The timeout of the only rank once so many steps are settled."""
    found = settled(collector, lambda each: sum(values(each, "rankwatch_steps_total").values()) == steps)
    (timeout,) = values(found, TIMEOUT).values()
    return timeout


@pytest.mark.process
def test_real_long_checkpoint(tmp_path: Path, collector: RanksCollector) -> None:
    """While a real rank saves, it is allowed five times the save before; afterwards five steps again."""
    code = """
steps(8, 0.01)
with run.checkpoint("save"): ready()
steps(1, 0.01)
with run.checkpoint("save"): ready()
steps(1, 0.01)
ready()
"""
    with rank(tmp_path, code) as process:
        began = time.monotonic()
        assert not values(collector.collect(), TIMEOUT), "nobody knows how long a save takes"
        until(lambda: time.monotonic() - began > 0.2, "the save has taken a while")
        go_on(process)
        took = time.monotonic() - began
        while_saving = _timeout(collector, 9)
        assert FACTOR * 0.2 < while_saving < FACTOR * (took + 5.0)
        go_on(process)
        assert _timeout(collector, 10) < while_saving


@pytest.mark.process
def test_real_restart(tmp_path: Path, collector: RanksCollector) -> None:
    """A real rank that restarts is allowed its start, which takes longer than a step, and not its steps."""
    with rank(tmp_path, "time.sleep(0.3)\nsteps(8, 0.001)\nready()") as process:
        _timeout(collector, 8)
        kill(process)
    with rank(tmp_path, "ready()\nsteps(8, 0.001)\nready()") as process:
        (of_start,) = values(collector.collect(), TIMEOUT).values()
        assert of_start > FACTOR * 0.3
        go_on(process)
        assert _timeout(collector, 16) < of_start


@pytest.mark.process
def test_real_failed_step(tmp_path: Path, collector: RanksCollector) -> None:
    """A real step that an exception ended teaches nothing, as a collective's timeout at the end of a hang."""
    code = """
steps(8, 0.001)
for _ in range(2):
    try:
        with run.step():
            time.sleep(0.5)
            raise RuntimeError
    except RuntimeError:
        pass
ready()
"""
    with rank(tmp_path, code):
        assert _timeout(collector, 10) < FACTOR * 0.5
