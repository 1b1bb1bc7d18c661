"""Runs a job that is killed and resumed; reads its own stopwatch, and the account of time of an agent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.conventions.states import GoodputState
from support.agent.process import AgentProcess, until
from support.jobs import interrupted
from support.jobs.forked_ranks import shared_ranks

RUN = "job"
STEPS, SAVE_EVERY, COMPILE_SECONDS = 48, 8, 0.4
WORLDS = (2, 2, 3, 2)
"""Ranks of each attempt."""
KILLED_AFTER = (13, 27, 38)
"""Step of rank 0 after which SIGKILL ends all of each attempt but the last."""


class Stopwatch(NamedTuple):
    """What the job itself has measured, in seconds of all ranks together."""

    allocated: float
    productive: tuple[float, float]
    """At least and at most: what a call takes beyond the wait for the last rank may be called either."""


def run_job(directory: Path, between: Callable[[int], None]) -> Stopwatch:
    """Run the job through all of its attempts. Its boxes are in `directory/blackboxes`.

    between: called with the number of each attempt once it has made some steps.
    """
    for attempt, world in enumerate(WORLDS):
        seen = len(_lines(directory, 0))
        with _attempt(directory, attempt, world) as job:
            _until_line(directory, job, lambda lines, seen=seen: len(lines) > seen + 6)
            between(attempt)
            if attempt == len(KILLED_AFTER):
                until(lambda job=job: None not in _statuses(job), "the last attempt has ended")
                assert _statuses(job) == [0] * world
            else:
                last = KILLED_AFTER[attempt]
                _until_line(
                    directory,
                    job,
                    lambda lines, seen=seen, last=last: ["step", last] in [each[:2] for each in lines[seen:]],
                )
    return read_stopwatch(directory)


def _until_line(directory: Path, job: list[int], found: Callable[[list[list[Any]]], bool]) -> None:
    until(lambda: found(_lines(directory, 0)) or _statuses(job)[0] is not None, "the job came so far")
    assert _statuses(job)[0] is None, "the job ended by itself"


def _statuses(job: list[int]) -> list[int | None]:
    return [shared_ranks().status(pid) for pid in job]


@contextlib.contextmanager
def _attempt(directory: Path, number: int, world: int) -> Iterator[list[int]]:
    """Process ids of its ranks, killed together at the end of the block."""
    command = [interrupted.__file__, str(directory), str(STEPS), str(SAVE_EVERY), str(COMPILE_SECONDS)]
    own = {"RANKWATCH_RUN": RUN, "RANKWATCH_DIR": str(directory / "blackboxes"), "RANKWATCH_SUMMARY": "0"}
    own["ATTEMPT"] = str(number)
    job = shared_ranks().start(command, own, ranks=world, log=directory / "job.log")
    try:
        yield job
    finally:
        shared_ranks().kill(job)


def read_stopwatch(directory: Path) -> Stopwatch:
    """Allocated: from the start of a rank's first process to the end of its last one, or to the start of an
    attempt without it. Productive: steps that are made for the first time, without the wait for the batch and
    for other ranks, and without what makes the first step of a process slow."""
    ranks = [_processes(_lines(directory, rank)) for rank in range(max(WORLDS))]
    began = [min(each[number].started for each in ranks if number in each) for number in range(len(WORLDS))]
    allocated, least, most, reached = 0.0, 0.0, 0.0, -1
    for number in range(len(WORLDS)):
        there = [processes for processes in ranks if number in processes]
        attempt = [processes[number] for processes in there]
        allocated += sum(_until(processes, number, began) - processes[number].started for processes in there)
        for process in attempt:
            for step in process.steps:
                if step > reached:
                    entered = max(each.steps[step][2] for each in attempt if step in each.steps)
                    least += process.productive(step)
                    most += process.not_waiting(step, entered)
        reached = max(reached, *(step for each in attempt for step in each.steps))
    return Stopwatch(allocated, (least, most))


class _Process(NamedTuple):
    started: float
    steps: dict[int, list[float]]
    """Number -> its moments."""
    ended: list[float]
    """When it ended in order; else empty."""
    saves: dict[int, float]
    """Step -> seconds of the save after it."""

    def productive(self, step: int) -> float:
        """Seconds before a step and in it, without the call that brings the batch and the collective's."""
        _, batch, entered, _ = self.steps[step]
        return self._before(step) + entered - batch

    def not_waiting(self, step: int, entered: float) -> float:
        """The same, but only without what is sure to be waiting. entered: when the last rank entered the
        collective."""
        began, _, own, ended = self.steps[step]
        return self._before(step) + ended - began - interrupted.DATA_SECONDS - (entered - own)

    def _before(self, step: int) -> float:
        """Seconds since the step before; of a first step, less what makes it slow."""
        if step - 1 not in self.steps:
            return -COMPILE_SECONDS
        return self.steps[step][0] - self.steps[step - 1][3] - self.saves.get(step - 1, 0.0)


def _processes(lines: list[list[Any]]) -> dict[int, _Process]:
    """By attempt."""
    found: dict[int, _Process] = {}
    process = _Process(0.0, {}, [], {})
    for kind, *values in lines:
        if kind == "start":
            process = found[values[2]] = _Process(values[0], {}, [], {})
        elif kind == "save":
            process.saves[values[0]] = values[1]
        elif kind == "step":
            process.steps[values[0]] = values[1:]
        else:
            process.ended.append(values[0])
    return found


def _until(processes: dict[int, _Process], number: int, began: list[float]) -> float:
    """Until when the time of a rank counts for an attempt."""
    if number + 1 in processes:
        return processes[number + 1].started
    return began[number + 1] if number + 1 < len(began) else processes[number].ended[0]


def _lines(directory: Path, rank: int) -> list[list[Any]]:
    """The stopwatch of a rank; without a last line that was cut off."""
    path = directory / f"stopwatch-{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(each) for each in text.splitlines(keepends=True) if each.endswith("\n")]


def exported(agent: AgentProcess) -> dict[str, float]:
    """Seconds by state."""
    seconds = dict.fromkeys(GoodputState, 0.0)
    for line in agent.page().splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("rankwatch_goodput_seconds_total{"):
            seconds[GoodputState(name.partition('state="')[2].partition('"')[0])] = float(value)
    return {str(state): value for state, value in seconds.items()}
