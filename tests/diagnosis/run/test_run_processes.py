"""A rank that holds up a collective to which all ranks have come, by the state of its process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch_agent.sources.rank_process import ProcessFacts
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.processes import (
    Processes,
    contention,
    cpu_pressure,
    read_processes,
    with_processes,
)
from rankwatch_diagnosis.run.report import lines
from rankwatch_diagnosis.run.verdict import RunState
from rankwatch_diagnosis.run.waiting import Recorders, judge_waiting
from support.agent.process import until
from support.diagnosis.run_boxes import RankBox, at_one_collective, boxes_seen, stalled_for
from support.training.ranks import rank

STALL_SECONDS = 30.0
SLEEPS = ProcessFacts(pid=7, state="S")


@pytest.fixture
def in_collective(tmp_path: Path) -> Iterator[Boxes]:
    ranks = at_one_collective(tmp_path)
    yield boxes_seen(tmp_path)
    for each in ranks:
        each.writer.unlock()


def judged(boxes: Boxes, seen: Processes) -> HangVerdict:
    found = judge_waiting(boxes, Recorders(), stall=STALL_SECONDS, complete=False)
    assert (found.state, found.ranks) == (State.HANG, ())
    return with_processes(boxes, found, seen)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (ProcessFacts(pid=8, state="T"), "state T, a signal such as SIGSTOP stopped it"),
        (ProcessFacts(pid=8, state="t"), "state t, a debugger holds it"),
        (ProcessFacts(pid=8, state="Z"), "its process lives on"),
        (ProcessFacts(pid=8, state="D", wait_channel="nfs_wait_bit_killable"), ", in nfs_wait_bit_killable:"),
    ],
)
def test_odd_process(facts: ProcessFacts, reason: str, in_collective: Boxes) -> None:
    """It is named, and the reason says what its process does."""
    found = judged(in_collective, Processes(facts={0: SLEEPS, 1: facts, 2: SLEEPS}))
    assert (found.state, found.ranks) == (State.HANG, (1,))
    reasons: Any = found.evidence["reasons"]
    assert reason in reasons["1"]


def test_silent_recorder_among_answers(in_collective: Boxes) -> None:
    """A rank that alone gives no answer is named, also where its process is in a namespace of its own."""
    assert judged(in_collective, Processes(silent={2}, answered=2)).ranks == (2,)


@pytest.mark.parametrize(
    "seen",
    [
        Processes(silent={1, 2}, answered=1),
        Processes(silent={1}, answered=0),
        Processes(facts={0: replace(SLEEPS, state="D"), 1: replace(SLEEPS, state="D"), 2: SLEEPS}),
        Processes(facts=dict.fromkeys(range(3), SLEEPS)),
    ],
    ids=["most are silent", "nobody answered", "most are blocked", "all sleep"],
)
def test_nobody_is_odd(seen: Processes, in_collective: Boxes) -> None:
    """What most ranks show is no evidence against one of them."""
    assert judged(in_collective, seen).ranks == ()


def test_blocked_victim(tmp_path: Path) -> None:
    """Where the waits name a rank, another one that is blocked or silent is a victim like the rest."""
    ranks = stalled_for(tmp_path, 70.0)
    boxes = boxes_seen(tmp_path)
    found = judge_waiting(boxes, Recorders(), stall=STALL_SECONDS, complete=False)
    assert found.ranks == (1,)
    seen = Processes(facts={2: replace(SLEEPS, state="D")}, silent={2}, answered=2)
    assert with_processes(boxes, found, seen) == found
    stopped = with_processes(boxes, found, Processes(facts={1: replace(SLEEPS, state="T")}))
    assert stopped.ranks == (1,)
    reasons: Any = stopped.evidence["reasons"]
    assert reasons["1"].startswith("has not called all_reduce number 7")
    assert reasons["1"].endswith("a signal such as SIGSTOP stopped it")
    for each in ranks:
        each.writer.unlock()


def test_stopped_rank_of_a_run_that_goes_on(in_collective: Boxes) -> None:
    """It is no stall yet, so nobody is to blame. A note says what will hold the run up."""
    going = HangVerdict(state=State.SLOW)
    found = with_processes(in_collective, going, Processes(facts={2: replace(SLEEPS, state="T")}))
    assert (found.state, found.ranks) == (State.SLOW, ())
    assert found.evidence["notes"] == [
        "rank 2 does not run: its process is in state T, a signal such as SIGSTOP stopped it"
    ]


@pytest.mark.process
def test_stopped_process_is_seen(tmp_path: Path) -> None:
    """The holder of the box's lock is looked at, which is right in containers and after a pid was reused."""
    with rank(tmp_path, "steps(3)\nready()") as process:
        box = tmp_path / "job" / "0.blackbox"
        assert read_processes({0: box})[0].state != "T"
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: read_processes({0: box})[0].state == "T", "the process is stopped")
        verdict = diagnose_run(tmp_path)
        assert [each["process"]["state"] for each in verdict.ranks_seen] == ["T"]  # type: ignore[index]
        assert any(", process in state T" in line for line in lines(verdict))
    assert read_processes({0: box}) == {}


def test_processes_of_a_bundle(tmp_path: Path) -> None:
    """A bundle holds what its agent saw of the processes; broken facts are none."""
    ranks = at_one_collective(tmp_path / "blackboxes")
    for each in ranks:
        each.writer.unlock()
    facts = (
        {"pid": 1, "state": "S"},
        {"pid": 2, "state": "T", "wait_channel": "do_signal_stop"},
        {"state": 3},
    )
    told = [{"rank": rank, "state": "running", "process": each} for rank, each in enumerate(facts)]
    document = {"moment_monotonic_seconds": ranks[0].now, "ranks": told}
    (tmp_path / "ranks.json").write_text(json.dumps(document))
    verdict = diagnose_run(tmp_path)
    assert (verdict.state, verdict.ranks) == (RunState.STALLED, (1,))
    assert verdict.why.endswith("; its process does not run")
    assert any(line.endswith(", process in state T in do_signal_stop") for line in lines(verdict))


NO_BOXES = Boxes(run="job", world_size=4, by_rank={}, skipped={}, first_reason="", copied=False, moment=None)


def test_contention_of_cpus() -> None:
    """The ranks themselves wait for CPUs, and the host had too few of them in the last minute."""
    waits = {number: replace(SLEEPS, cpu_wait_share=0.3) for number in range(4)}
    assert contention(NO_BOXES, Processes(facts=waits, pressure=0.6)) == {
        "cpu_wait_share": 0.3,
        "cpu_pressure_share": 0.6,
    }
    assert contention(NO_BOXES, Processes(facts=waits)) == {"cpu_wait_share": 0.3}


@pytest.mark.parametrize(
    ("shares", "pressure"),
    [([0.3, 0.3, 0.3], 0.01), ([0.001, 0.002, 0.9], 0.9), ([], 0.9)],
    ids=["only at the start", "one rank", "other tasks"],
)
def test_no_contention(shares: list[float], pressure: float) -> None:
    """One sign alone is no contention of the ranks."""
    facts = {number: replace(SLEEPS, cpu_wait_share=share) for number, share in enumerate(shares)}
    assert contention(NO_BOXES, Processes(facts=facts, pressure=pressure)) == {}


def test_contention_in_boxes(tmp_path: Path) -> None:
    """What ranks have recorded of their run counts before the life of their processes, also after the end."""
    ranks = [RankBox(tmp_path, number) for number in range(3)]
    for number, each in enumerate(ranks):
        each.writer.floats[Now.CPU_WATCHED] = 50.0
        each.writer.floats[Now.CPU_WAITED] = 4.0 + number
        each.writer.unlock()
    boxes = boxes_seen(tmp_path)
    busy_start = {number: replace(SLEEPS, cpu_wait_share=0.9) for number in range(3)}
    for seen in (Processes(), Processes(facts=busy_start)):
        assert contention(boxes, seen) == {"cpu_wait_share": pytest.approx(0.1)}


def test_pressure_of_the_last_minute(tmp_path: Path) -> None:
    """It is a share, and unknown where the kernel does not measure it."""
    assert cpu_pressure(tmp_path) is None
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text("some avg10=90.00 avg60=48.50 avg300=1.00 total=12\n")
    assert cpu_pressure(tmp_path) == pytest.approx(0.485)
    (tmp_path / "pressure" / "cpu").write_text("some\n")
    assert cpu_pressure(tmp_path) is None
