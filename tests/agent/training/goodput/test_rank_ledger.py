"""The time of a rank: each state where it belongs, all together the time that went by; over restarts."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import GoodputState
from rankwatch.identity import Identity
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.goodput import run_ledgers
from rankwatch_agent.training.goodput.rank_ledger import RankLedger
from rankwatch_agent.training.goodput.run_ledgers import RunLedger, RunLedgers, load_run, save_run
from rankwatch_agent.training.goodput.shared import MOST_ATTEMPTS

BOOTED = 1_700_000_000.0
"""Unix time at the monotonic moment 0."""


def header(
    rank: int = 0, *, attempt: int = 0, started: float = 100.0, imports: float = 0.0, world: int = 2
) -> Header:
    """Of a process that began `imports` seconds before its box."""
    return Header(
        identity=Identity(run="job", rank=rank, world_size=world, attempt=attempt),
        pid=1 + 10 * attempt,
        started_monotonic=started + imports,
        started_wall=BOOTED + started + imports,
        target_steps=None,
        capacity=1024,
        process_started_wall=BOOTED + started,
    )


def begun(run: RunLedger, of: Header) -> RankLedger:
    """The ledger of a rank whose process has begun."""
    ledger = run.rank(of)
    ledger.begin_process(of)
    return ledger


def step(
    ledger: RankLedger,
    number: int,
    begin: float,
    end: float,
    timeout: float | None = None,
    parts: dict[str, float] | None = None,
) -> None:
    """A step that by default only computes; timeout (s): what the rank has learnt, None for nothing yet."""
    ledger.step(number, begin, end, {"forward": end - begin} if parts is None else parts, lambda: timeout)


def steps(ledger: RankLedger, first: int, count: int, *, begin: float, timeout: float | None = None) -> float:
    """Steps of a second one after the other; returns the end of the last one."""
    for number in range(first, first + count):
        step(ledger, number, begin, begin + 1.0, timeout)
        begin += 1.0
    return begin


def spent(ledger: RankLedger) -> dict[str, float]:
    """States in which time was spent."""
    return {str(state): round(seconds, 6) for state, seconds in ledger.seconds.items() if seconds}


def test_start_up_and_first_step() -> None:
    """Start-up lasts to the first step, and holds what that one takes longer than those after it."""
    ledger = begun(RunLedger(), header(imports=10.0))
    step(ledger, 0, 130.0, 138.0)
    steps(ledger, 1, 9, begin=138.0)
    assert spent(ledger) == {"startup": 30.0, "productive": 9.0}  # the first one waits for a tenth to follow
    steps(ledger, 10, 1, begin=147.0)
    assert spent(ledger) == {"startup": 37.0, "productive": 11.0}


def test_parts_of_a_step() -> None:
    """Waiting for data, transfers, waiting for others, checkpoint and evaluation are apart."""
    run = RunLedger()
    slow, fast = begun(run, header(0)), begun(run, header(1))
    for number in range(20):
        begin = 110.0 + 10.0 * number
        for ledger, compute, communication in ((slow, 7.0, 1.0), (fast, 4.0, 4.0)):
            parts = {"data_wait": 1.0, "communication": communication, "evaluation": 0.5, "checkpoint": 0.5}
            step(ledger, number, begin, begin + 10.0, parts={**parts, "backward": compute})
    assert slow.seconds[GoodputState.STRAGGLER] == 0.0
    assert slow.seconds[GoodputState.COMMUNICATION] == pytest.approx(20.0)
    found = spent(fast)
    expected = {
        "straggler": 60.0,
        "communication": 20.0,
        "evaluation": 10.0,
        "checkpoint": 10.0,
        "data": 20.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_between_steps() -> None:
    """A load is a restore although it is a phase `checkpoint`; what no phase claims belongs to the loop."""
    ledger = begun(RunLedger(), header(imports=10.0))
    ledger.section(112.0, 118.0, "checkpoint")
    ledger.restored(112.0, 118.0)
    end = steps(ledger, 0, 12, begin=120.0)
    ledger.section(end + 1.0, end + 4.0, "checkpoint")
    ledger.section(end + 3.0, end + 5.0, "evaluation")  # both at once: counted once
    step(ledger, 12, end + 6.0, end + 7.0)
    of_sections = {"startup": 14.0, "restore": 6.0, "checkpoint": 3.0, "evaluation": 1.0}
    assert spent(ledger) == {**of_sections, "productive": 12.0 + 2.0 + 1.0}


@pytest.mark.parametrize("live", [False, True])
def test_stall(live: bool) -> None:
    """A wait beyond what is normal is a stall as a whole, live or found afterwards."""
    ledger = begun(RunLedger(), header())
    end = steps(ledger, 0, 12, begin=100.0, timeout=5.0)
    if live:
        ledger.stall(end + 6.0)
        ledger.stall(end + 40.0)
        assert ledger.seconds[GoodputState.STALL] == pytest.approx(40.0)
    step(ledger, 12, end, end + 60.0, 5.0)
    assert ledger.seconds[GoodputState.STALL] == pytest.approx(60.0)
    steps(ledger, 13, 1, begin=end + 60.0)
    assert spent(ledger) == {"productive": 13.0, "stall": 60.0}


def test_killed_and_resumed() -> None:
    """What lay behind the last step is down; steps that were done before are replayed, on each rank."""
    run = RunLedger()
    for rank in (0, 1):
        ledger = begun(run, header(rank))
        steps(ledger, 0, 50, begin=100.0)
        ledger.end_process(150.5, in_order=False)
    for rank in (0, 1):
        again = begun(run, header(rank, attempt=1, started=170.0))
        assert again is run.ranks[rank]
        assert steps(again, 40, 30, begin=180.0) == 210.0
        assert spent(again) == {"productive": 50.0 + 20.0, "down": 20.0, "startup": 10.0, "replayed": 10.0}
    assert run.attempts.by_number[1].highest_step == 69
    by_attempt = {number: sum(seconds.values()) for number, _, seconds in run.by_attempt()}
    assert by_attempt == pytest.approx({0: 140.0, 1: 80.0})


def test_smaller_world() -> None:
    """A rank that does not come back was allocated until the next attempt began, and not after that."""
    run = RunLedger()
    for rank in (0, 1):
        ledger = begun(run, header(rank))
        steps(ledger, 0, 20, begin=100.0)
        ledger.end_process(120.0, in_order=False)
    begun(run, header(0, attempt=1, started=150.0, world=1))
    run.charge_ended(500.0, living={0})
    assert run.ranks[1].seconds[GoodputState.DOWN] == pytest.approx(30.0)
    run.charge_ended(900.0, living={0})
    assert sum(run.ranks[1].seconds.values()) == pytest.approx(50.0)


def test_idle() -> None:
    """A rank that has ended beside others of its attempt holds its GPU for nothing."""
    run = RunLedger()
    going, ended = (begun(run, header(rank)) for rank in (0, 1))
    for ledger in (going, ended):
        steps(ledger, 0, 20, begin=100.0)
    ended.end_process(121.0, in_order=True)
    run.charge_ended(130.0, living={0})
    assert ended.seconds[GoodputState.IDLE] == pytest.approx(10.0)
    steps(going, 20, 15, begin=120.0)
    going.end_process(135.0, in_order=True)
    run.charge_ended(140.0, living=set())
    assert ended.seconds[GoodputState.IDLE] == pytest.approx(15.0)


def test_died_in_start_up() -> None:
    """A process that never came to a step spent its life on start-up."""
    ledger = begun(RunLedger(), header(imports=10.0))
    ledger.end_process(125.0, in_order=False)
    assert spent(ledger) == {"startup": 25.0}


def test_failed_step() -> None:
    """A step that an exception ended completed nothing: it is done for the first time afterwards."""
    run = RunLedger()
    ledger = begun(run, header())
    end = steps(ledger, 0, 20, begin=100.0)
    ledger.step_failed(end)
    step(ledger, 20, end, end + 1.0)
    ledger.end_process(end + 1.0, in_order=False)
    begun(run, header(attempt=1, started=130.0))
    step(ledger, 20, 130.0, 131.0)
    assert ledger.seconds[GoodputState.REPLAYED] == 0.0
    assert ledger.seconds[GoodputState.DOWN] == pytest.approx(10.0)


def test_missed_records() -> None:
    """Time whose records are lost is unknown."""
    ledger = begun(RunLedger(), header())
    ledger.missed()
    end = steps(ledger, 1000, 5, begin=400.0)
    assert spent(ledger) == {"unknown": 300.0, "productive": 5.0}
    ledger.missed()
    step(ledger, 1100, end + 90.0, end + 91.0)
    assert ledger.seconds[GoodputState.UNKNOWN] == pytest.approx(390.0)


def test_clock_set_back() -> None:
    """Between two processes only Unix time is known; one that was set back shows no gap."""
    run = RunLedger()
    ledger = begun(run, header(started=1000.0))
    ledger.end_process(steps(ledger, 0, 20, begin=1000.0), in_order=False)
    begun(run, header(attempt=1, started=500.0))
    steps(ledger, 20, 20, begin=500.0)
    assert spent(ledger) == {"productive": 40.0}


@pytest.mark.parametrize("seed", range(40))
def test_sum(seed: int) -> None:
    """Whatever happens in whatever order, the states sum to the time for which the rank was allocated."""
    chance = random.Random(seed)
    run = RunLedger()
    now = allocated_since = 1000.0
    step, ledger = 0, run.rank(header())
    for attempt in range(chance.randint(1, 5)):
        now += chance.uniform(0.0, 100.0) if attempt else 0.0
        ledger = begun(run, header(attempt=attempt, started=now, imports=chance.uniform(0.0, 5.0)))
        now += 10.0
        for _ in range(chance.randint(0, 60)):
            now = happen(chance, ledger, now, step)
            step += 1
            if chance.random() < 0.1:
                run = load_run(json.loads(json.dumps(save_run(run))), BOOTED + now)
                ledger = run.rank(header(attempt=attempt))
        now += chance.uniform(0.0, 3.0)
        ledger.end_process(now, in_order=chance.random() < 0.5)
        step = max(0, step - chance.randint(0, 20))
    assert sum(ledger.seconds.values()) == pytest.approx(now - allocated_since, rel=1e-9)
    assert min(ledger.seconds.values()) >= 0.0
    of_attempts = sum(sum(seconds.values()) for _, _, seconds in run.by_attempt())
    assert of_attempts == pytest.approx(now - allocated_since, rel=1e-9)


def happen(chance: random.Random, ledger: RankLedger, now: float, step: int) -> float:
    """A pause with whatever in it, then a step; returns its end."""
    pause = chance.choice([0.0, 0.01, 3.0, 40.0])
    for name in ("checkpoint", "evaluation", "data_wait", "other"):
        if chance.random() < 0.2:
            began = now + chance.uniform(-1.0, pause)
            ledger.section(began, began + chance.uniform(0.0, pause), name)
    if chance.random() < 0.1:
        ledger.restored(now, now + pause / 2)
    if chance.random() < 0.1:
        ledger.stall(now + pause * 0.7)
    if chance.random() < 0.1:
        ledger.missed()
    start = now + pause
    seconds = chance.choice([0.0, 0.5, 1.0, 30.0])
    shares = [chance.random() for _ in range(4)]
    names = ("data_wait", "communication", "forward", "checkpoint")
    parts = {name: seconds * share / sum(shares) for name, share in zip(names, shares, strict=True)}
    if chance.random() < 0.1:
        ledger.step_failed(start)
    ledger.step(step, start, start + seconds, parts, lambda: 10.0)
    return start + seconds


def test_attempt_that_was_joined() -> None:
    """A rank whose attempt is not kept apart any more goes on: its steps are those of the oldest one kept."""
    run = RunLedger()
    first, *_ = (begun(run, header(each, attempt=each, world=200)) for each in range(MOST_ATTEMPTS + 1))
    steps(first, 0, 2, begin=120.0)
    assert 0 not in run.attempts.by_number
    assert run.attempts.by_number[1].highest_step == 1


def test_parts_that_are_no_numbers() -> None:
    """A box whose device clock makes them costs no run its account when the agent starts again."""
    run = RunLedger()
    ledger = begun(run, header(imports=10.0))
    for number in range(20):
        parts = {"communication": math.nan, "other": math.inf}
        step(ledger, number, 120.0 + number, 121.0 + number, parts=parts)
    assert ledger.seconds[GoodputState.PRODUCTIVE] == 20.0
    assert load_run(json.loads(json.dumps(save_run(run))), 0.0).seconds == run.seconds


def test_cost_of_many_ended_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows with their number, and not with its square: hundreds of runs may have as many as they may."""
    run, asked, attempt = RunLedger(), list[int](), RankLedger.attempt
    for number in range(200):
        begun(run, header(number, world=200)).end_process(200.0 + number, in_order=True)

    def count(ledger: RankLedger) -> int:
        asked.append(1)
        assert attempt.fget is not None
        return int(attempt.fget(ledger))

    monkeypatch.setattr(RankLedger, "attempt", property(count))
    run.charge_ended(1000.0, ())
    assert len(asked) <= 10 * 200
    assert {each.cursor for each in run.ranks.values()} == {399.0}


def test_process_before_a_restart(tmp_path: Path) -> None:
    """An agent that is killed takes with it nothing of a process whose box another one has replaced."""
    boxes, state = tmp_path / "boxes", tmp_path / "state"
    boxes.mkdir()
    agent = RanksCollector(directory=boxes, state_directory=state)

    def run_steps(run: rankwatch.Run, count: int) -> None:
        for _ in range(count):
            with run.step():
                pass

    with rankwatch.start(run="job", directory=boxes, rank=0) as run:
        run_steps(run, 2)
        agent.collect()
        run_steps(run, 3)
    with rankwatch.start(run="job", directory=boxes, rank=0) as run:
        agent.collect()
        run_steps(run, 1)
    before, after = agent.ledgers.of("job").ranks[0], RunLedgers(state, 0.0).of("job")
    assert (after.ranks[0].process, after.ranks[0].by_attempt[0]) == (before.process, before.by_attempt[0])
    assert after.attempts.by_number[0].highest_step == 4


def test_many_attempts_of_a_run_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many, a run keeps the sums of the ranks that are here: neither memory nor the file is full."""
    monkeypatch.setattr(run_ledgers, "_MOST_KEPT", 20)
    agent = RanksCollector(directory=tmp_path)
    with rankwatch.start(run="job", directory=tmp_path, rank=0):
        agent.collect()
        job = agent.ledgers.of("job")
        job.rank_of(7, "")
        job.ranks[0].by_attempt |= {number: {GoodputState.PRODUCTIVE: 1.0} for number in range(1, 31)}
        agent.collect()
    assert job.ranks.keys() == {0} and job.size <= 20
    assert job.seconds[GoodputState.PRODUCTIVE] == 30.0
