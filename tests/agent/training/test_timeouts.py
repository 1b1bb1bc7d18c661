"""What a rank teaches about how long it may stand still."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.timeouts import FACTOR, LONGEST_FACTOR, SKIPPED_STEPS, LearntTimeouts, Longest
from support.agent.process import until
from support.training.ranks import go_on, kill, rank, settled, values

TIMEOUT = "rankwatch_progress_timeout_seconds"


def _after(*steps: float, progress: LearntTimeouts | None = None, start: float = 0.0) -> LearntTimeouts:
    """A process that began at `start`, made its first steps in 10 s each, and then these."""
    progress = progress or LearntTimeouts()
    progress.begin_process(start)
    moment = start
    for seconds in (*[10.0] * SKIPPED_STEPS, *steps):
        moment += seconds
        progress.step(seconds, moment)
    return progress


def test_step_timeout() -> None:
    """The longest step times five is the timeout. The first steps of a process are left out."""
    assert _after(1.0, 2.0, 2.0).timeout("forward") == FACTOR * 2.0


def test_stalls_teach_nothing() -> None:
    """However often a run stalls: a stall of twenty minutes must not allow the next one a hundred."""
    steps = [1.0] * 50
    twice = _after(*steps, 1200.0, *steps, 900.0, *steps)
    assert twice.timeout(None) == FACTOR * 1.0
    often = _after(*steps, 1200.0, 700.0, *steps, 40.0, *steps, *steps, 90.0, *steps, 300.0, 1200.0)
    assert often.timeout(None) == FACTOR * 1.0


def test_long_steps_become_normal() -> None:
    """The third step of a new length in a row is a lesson."""
    longer = _after(*[1.0] * 50, 8.0, 8.5)
    assert longer.timeout(None) == FACTOR * 1.0
    longer = _after(*[1.0] * 50, 8.0, 8.5, 9.0)
    assert longer.timeout(None) == FACTOR * 8.5


@pytest.mark.parametrize("distances", [(99, 99), (99, 105), (7, 7)])
def test_unmarked_evaluation(distances: tuple[int, int]) -> None:
    """What comes at even distances and takes about as long each time is a routine of the run."""
    first, second = ([1.0] * count for count in distances)
    assert _after(*first, 60.0, *first, 55.0, *second, 70.0).timeout(None) == FACTOR * 60.0


def test_frequent_long_steps() -> None:
    """Five alike at odd distances are part of the run, as where batches differ; five in thousands are not."""
    steps = [(10, 20), (11, 20), (40, 20), (20, 21), (90, 20)]
    often = _after(1.0, *(each for count, long in steps for each in (*[1.0] * count, float(long))))
    assert often.timeout(None) == FACTOR * 20.0
    seldom = _after(1.0, *(each for count, long in steps for each in (*[1.0] * (9 * count), float(long))))
    assert seldom.timeout(None) == FACTOR * 1.0


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
    for ended in (2000.0, 4000.0):
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
    """A restart is allowed what starts have taken. From its beginning through its first steps; then the steps
    count again."""
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
    """The last step of the process before is none of the start. It is settled only when the new process has
    begun."""
    progress = _after(1.0, 1.0)
    progress.begin_process(1000.0)
    progress.step(1.0, 999.0)
    for number in range(SKIPPED_STEPS - 1):
        progress.step(1.0, 1001.0 + number)
    assert progress.timeout(None) == FACTOR * 10.0, "one step of the start is still to come"


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_section_timeout(phase: str) -> None:
    """A section has a timeout of its own beside that of steps. Unknown until the first one has ended; the
    single longest one is allowed half as much again."""
    progress = _after(1.0, 1.0)
    assert progress.timeout(phase) is None
    progress.section(phase, 30.0)
    assert progress.timeout(phase) == FACTOR * 30.0 + FACTOR * 1.0
    progress.section(phase, 300.0)
    assert progress.timeout(phase) == LONGEST_FACTOR * 300.0 + FACTOR * 1.0
    assert progress.timeout("forward") == FACTOR * 1.0


def test_load_at_restart() -> None:
    """A load at a restart belongs to the start. Checkpoints are loaded more slowly than they are saved, or
    never were."""
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


def _timeout(collector: RanksCollector) -> float | None:
    return next(iter(values(collector.collect(), TIMEOUT).values()), None)


def _settled(collector: RanksCollector, steps: int) -> None:
    settled(collector, lambda each: sum(values(each, "rankwatch_steps_total").values()) == steps)


@pytest.mark.process
def test_real_long_checkpoint(tmp_path: Path, collector: RanksCollector) -> None:
    """A long checkpoint of a real rank does not pass the timeout learnt from the one before. While it saves,
    it is allowed five times the save before; afterwards five steps again."""
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
        assert _timeout(collector) is None, "nobody knows how long a save takes"
        until(lambda: time.monotonic() - began > 0.2, "the save has taken a while")
        go_on(process)
        took = time.monotonic() - began
        _settled(collector, 9)
        while_saving = _timeout(collector)
        assert while_saving is not None
        assert FACTOR * 0.2 < while_saving < FACTOR * (took + 5.0)
        go_on(process)
        _settled(collector, 10)
        afterwards = _timeout(collector)
        assert afterwards is not None
        assert afterwards < while_saving


@pytest.mark.process
def test_real_restart(tmp_path: Path, collector: RanksCollector) -> None:
    """A real rank that restarts is allowed its start and not its steps. The agent sees both processes; a
    start takes longer than a step."""
    with rank(tmp_path, "time.sleep(0.3)\nsteps(8, 0.001)\nready()") as process:
        _settled(collector, 8)
        of_steps = _timeout(collector)
        kill(process)
    assert of_steps is not None
    with rank(tmp_path, "ready()\nsteps(8, 0.001)\nready()") as process:
        of_start = _timeout(collector)
        assert of_start is not None
        assert of_start > FACTOR * 0.3
        go_on(process)
        _settled(collector, 16)
        again = _timeout(collector)
    assert again is not None
    assert again < of_start


@pytest.mark.process
def test_real_failed_step(tmp_path: Path, collector: RanksCollector) -> None:
    """A real step that an exception ended teaches nothing. As a collective's timeout does at the end of a
    hang."""
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
        _settled(collector, 10)
        timeout = _timeout(collector)
    assert timeout is not None
    assert timeout < FACTOR * 0.5
