"""Attempts of real ranks: how they ended, counted once, whatever happens to the agent."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.runtime.node_events import (
    NodeEvents,
    OomKill,
    PreemptionNotice,
    RestartCycle,
    RestartCycles,
)
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.life import attempts
from rankwatch_agent.training.life.attempts import SETTLE_SECONDS
from rankwatch_agent.training.life.series import BORN_SECONDS
from support.training.ranks import go_on, kill, rank, settled, state, values

pytestmark = pytest.mark.process

ENDED = "rankwatch_run_attempt_end_timestamp_seconds"
LINE = "Memory cgroup out of memory: Killed process 1 (python3) total-vm:1kB"
CLASS = "os.environ['RANKWATCH_RUN_CLASS'] = 'nightly'"


class Agent:
    """The collector, with clocks that can be set forward."""

    def __init__(self, directory: Path, state: Path | None = None, *, ahead: float = 0.0) -> None:
        self.ahead = ahead
        self.events = NodeEvents()
        self.cycles = RestartCycles()
        self.collector = RanksCollector(
            directory=directory,
            events=self.events,
            cycles=self.cycles,
            state_directory=state,
            monotonic=lambda: time.monotonic() + self.ahead,
            wall=lambda: time.time() + self.ahead,
        )

    def after(self, seconds: float = 0.0) -> Collection:
        """What is exported after the next look, in so many seconds."""
        self.ahead += seconds
        return self.collector.collect()

    def settled(self) -> Collection:
        """What is exported once all reasons are in."""
        self.after()
        return self.after(SETTLE_SECONDS)

    def oom_kill(self, pid: int, name: str = "python3", *, before: float = 0.0) -> None:
        """The kernel's line about a process that it killed so many seconds ago."""
        self.events.add_kill(OomKill(pid, name, time.monotonic() - before, "/c", LINE))


def end(collection: Collection) -> tuple[str, ...]:
    """Outcome, kind, exception, rank and message of the only attempt that is over."""
    (labels,) = values(collection, ENDED)
    return labels[2:]


def counted(collection: Collection, what: str) -> dict[tuple[str, ...], float]:
    """Of attempts, failures or starts."""
    found = values(collection, f"rankwatch_run_{what}_total")
    return {labels: value for labels, value in found.items() if value}


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path / "boxes", tmp_path / "state")


def test_counted_once(agent: Agent, tmp_path: Path) -> None:
    """Series of a class exist at 0 before that; the agent that follows counts nothing again."""
    with rank(tmp_path / "boxes", "steps(1)\nready()\nrun.finish()\nready()", before=CLASS) as process:
        born = values(agent.after(), "rankwatch_run_attempts_total")
        assert ({labels[0] for labels in born}, set(born.values())) == ({"nightly"}, {0.0})
        go_on(process)
        assert end(agent.settled()) == ("finished", "", "", "", "")
        assert not counted(agent.after(), "attempts")
        collection = agent.after(BORN_SECONDS)
        assert counted(collection, "attempts") == {("nightly", "finished"): 1.0}
        assert counted(collection, "starts") == {("nightly", "first"): 1.0}
        assert not counted(collection, "failures")
        successor = Agent(tmp_path / "boxes", tmp_path / "state", ahead=agent.ahead)
        successor.settled()
        assert counted(successor.after(BORN_SECONDS), "attempts") == {("nightly", "finished"): 1.0}


def test_attempt_that_ended_without_an_agent(tmp_path: Path) -> None:
    """One that keeps its state counts what ended while it was away; a new one counts only what it sees."""
    before = Agent(tmp_path / "boxes", tmp_path / "state")
    with rank(tmp_path / "boxes", "steps(1)\nready()\nraise KeyError('x')", before=CLASS) as process:
        before.after()
        before.after(BORN_SECONDS)
        go_on(process)
        process.wait()
    same = Agent(tmp_path / "boxes", tmp_path / "state", ahead=before.ahead)
    new = Agent(tmp_path / "boxes", ahead=1.0)
    for agent, expected in ((same, {("nightly", "exception"): 1.0}), (new, {})):
        agent.settled()
        assert counted(agent.after(BORN_SECONDS + 1.0), "failures") == expected


@pytest.mark.parametrize("text", ["", "[]", '{"since": 1, "classes": {"a": 3}, "counted": []}', "\x00"])
def test_broken_state(text: str, tmp_path: Path) -> None:
    """It is replaced, and costs nothing but the memory of what was counted."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "attempts.json").write_text(text)
    agent = Agent(tmp_path / "boxes", tmp_path / "state")
    with rank(tmp_path / "boxes", "steps(1)\nready()"):
        assert values(agent.after(), "rankwatch_run_attempts_total")


def test_error_of_one_rank(agent: Agent, tmp_path: Path) -> None:
    """The rank that failed is named, and not the one that its launcher then terminated."""
    code = "steps(1)\nready()\nraise ValueError('bad batch')"
    with (
        rank(tmp_path / "boxes", "steps(1)\nready()", number=0, world=2) as other,
        rank(tmp_path / "boxes", code, number=1, world=2) as failing,
    ):
        settled(agent.collector, lambda each: state(each) == {"0": "running", "1": "running"})
        go_on(failing)
        other.terminate()
        other.wait()
        assert end(agent.settled()) == ("failed", "exception", "ValueError", "1", "bad batch")
        collection = agent.after(BORN_SECONDS)
    assert counted(collection, "attempts") == {("", "failed"): 1.0}
    assert counted(collection, "failures") == {("", "exception"): 1.0}


def test_only_the_node_of_rank_0_counts_the_end(agent: Agent, tmp_path: Path) -> None:
    """Another one counts a failure if the root cause is there."""
    code = "steps(1)\nready()\nraise ValueError"
    with rank(tmp_path / "boxes", code, number=1, world=2) as failing:
        agent.after()
        go_on(failing)
        agent.settled()
        collection = agent.after(BORN_SECONDS)
    assert not counted(collection, "attempts")
    assert counted(collection, "failures") == {("", "exception"): 1.0}


def test_killed_by_the_kernel(agent: Agent, tmp_path: Path) -> None:
    """The line is found by process id, though late; kept beside the box, it goes with the next process."""
    boxes = tmp_path / "boxes"
    with rank(boxes, "steps(1)\nready()") as process:
        agent.after()
        kill(process)
        assert state(agent.after()) == {"0": "lost"}
        agent.oom_kill(process.pid)
        assert end(agent.settled()) == ("failed", "host_out_of_memory", "SIGKILL", "0", LINE)
        assert (boxes / "job" / "0.killed").read_text() == LINE
        killed = values(agent.after(), "rankwatch_rank_failures_total")
    assert killed == {("job", "0", "SIGKILL", "host_out_of_memory"): 1.0}
    assert values(Agent(boxes).after(), "rankwatch_rank_failures_total") == killed, "by the file"
    with rank(boxes, "steps(1)\nready()"):
        assert not (boxes / "job" / "0.killed").exists()


def test_killed_for_no_reason(agent: Agent, tmp_path: Path) -> None:
    """Kills of other processes, and of one that had the process id before, explain nothing."""
    with rank(tmp_path / "boxes", "steps(1)\nready()") as process:
        agent.after()
        agent.oom_kill(process.pid, before=1000.0)
        agent.oom_kill(process.pid + 1)
        kill(process)
        assert end(agent.settled()) == ("lost", "lost", "", "0", "")


def test_worker_killed_by_the_kernel(agent: Agent, tmp_path: Path) -> None:
    """The rank fails by an exception that names the worker of its data loader."""
    message = "DataLoader worker (pid 4711) is killed by signal: Killed. "
    with rank(tmp_path / "boxes", f"steps(1)\nready()\nraise RuntimeError({message!r})") as process:
        agent.after()
        go_on(process)
        agent.oom_kill(4711, "pt_data_worker")
        assert end(agent.settled()) == ("failed", "host_out_of_memory", "SIGKILL", "0", LINE)


def test_hostile_place_of_the_note(agent: Agent, tmp_path: Path) -> None:
    """The directory of a run is its user's: a link there leads nowhere."""
    boxes = tmp_path / "boxes"
    (tmp_path / "victim").write_text("untouched")
    with rank(boxes, "steps(1)\nready()") as process:
        agent.after()
        for name in ("0.killed", f".0.killed.{os.getpid()}"):
            (boxes / "job" / name).symlink_to(tmp_path / "victim")
        kill(process)
        agent.oom_kill(process.pid)
        agent.settled()
    assert (tmp_path / "victim").read_text() == "untouched"
    assert not (boxes / "job" / "0.killed").is_symlink()


def test_notice_of_preemption(agent: Agent, tmp_path: Path) -> None:
    """SIGTERM after a notice of the cloud is a preemption; without one it is a termination."""
    with rank(tmp_path / "boxes", "steps(1)\nready()") as process:
        agent.after()
        agent.events.add_notice(PreemptionNotice("aws", time.time(), "terminate at noon"))
        process.terminate()
        process.wait()
        assert end(agent.settled()) == ("preempted", "", "", "", "terminate at noon")


def test_restart(agent: Agent, tmp_path: Path) -> None:
    """The end of an attempt stays visible while the next one runs, and both starts count with their cause."""
    boxes = tmp_path / "boxes"
    with rank(boxes, "steps(1)\nready()\nraise MemoryError") as process:
        agent.after()
        go_on(process)
        process.wait()
    again = "os.environ.update(TORCHELASTIC_RESTART_COUNT='1', TORCHELASTIC_MAX_RESTARTS='3')"
    with rank(boxes, "steps(1)\nready()", before=again):
        collection = agent.settled()
        assert end(collection) == ("failed", "host_out_of_memory", "MemoryError", "0", "")
        assert state(collection) == {"0": "running"}
        assert values(collection, "rankwatch_run_restarts") == {("job",): 1.0}
        assert values(collection, "rankwatch_run_attempt") == {("job",): 1.0}
        starts = counted(agent.after(BORN_SECONDS), "starts")
    assert starts == {("", "first"): 1.0, ("", "restart"): 1.0}


def test_attempts_without_progress(agent: Agent, tmp_path: Path) -> None:
    """Attempts that end one after the other before a new step; one new step ends the row."""
    name = "rankwatch_run_attempts_without_progress"
    seen = []
    for attempt, steps in enumerate((3, 3, 2, 3)):
        before = f"os.environ['RANKWATCH_ATTEMPT'] = '{attempt}'"
        with rank(tmp_path / "boxes", f"steps({steps})\nready()\nraise ValueError", before=before) as process:
            agent.after()
            go_on(process)
            process.wait()
        (count,) = values(agent.settled(), name).values()
        seen.append(count)
    assert seen == [0.0, 1.0, 2.0, 3.0]
    with rank(tmp_path / "boxes", "steps(4)\nready()", before="os.environ['RANKWATCH_ATTEMPT'] = '4'"):
        assert set(values(agent.after(), name).values()) == {0.0}


def test_plan(agent: Agent, tmp_path: Path) -> None:
    """The deadline and the requeues are what the environment says; imports belong to the first step."""
    before = "os.environ.update(RANKWATCH_DEADLINE='2030-01-01T00:00Z', SLURM_RESTART_COUNT='2')"
    with rank(tmp_path / "boxes", "steps(1)\nready()", before=f"{before}\ntime.sleep(0.5)"):
        collection = agent.after()
    assert values(collection, "rankwatch_run_deadline_timestamp_seconds") == {("job",): 1893456000.0}
    assert values(collection, "rankwatch_run_requeues") == {("job",): 2.0}
    (seconds,) = values(collection, "rankwatch_run_time_to_first_step_seconds").values()
    assert seconds > 0.5


def test_cycles_of_the_launcher(agent: Agent, tmp_path: Path) -> None:
    """NVRx's launcher counts restarts that this node has not seen, and tells of nodes that stand by."""
    link = "os.environ['NVRX_CURRENT_CYCLE_INFO'] = '/shared/nvrx/cycle_info.70.current'"
    now, owner = time.time(), os.getuid()

    def told(collection: Collection) -> dict[str, float]:
        names = {
            *("restarts", "cycle", "cycle_start_timestamp_seconds", "cycle_end_timestamp_seconds", "nodes")
        }
        found = {name: values(collection, f"rankwatch_run_{name}") for name in names}
        return {" ".join((n, *labels[1:])): value for n, of in found.items() for labels, value in of.items()}

    with rank(tmp_path / "boxes", "steps(1)\nready()", before=f"{CLASS}\n{link}"):
        assert not values(agent.after(), "rankwatch_run_cycle")
        assert agent.cycles.wanted == {("70", owner)}
        agent.cycles.found = {
            "70": (
                RestartCycle(0, 4, now - 900.0, now - 60.0, 8, 2, owner),
                RestartCycle(0, 5, now - 50.0, None, 8, 1, owner),
                RestartCycle(0, 6, now + 50.0, now + 60.0, 8, 0, owner + 1),
            ),
            "71": (RestartCycle(3, 9, now - 50.0, None, 1, 0, owner),),
        }
        begun = {"cycle": 5.0, "cycle_start_timestamp_seconds": now - 50.0}
        assert told(agent.after()) == {"restarts": 5.0, **begun, "nodes active": 8.0, "nodes standby": 1.0}
        agent.cycles.found = {
            "70": (
                RestartCycle(0, 5, now - 50.0, now + 30.0, 8, 1, owner),
                RestartCycle(0, 6, now + 40.0, now + 90.0, None, 0, owner),
            )
        }
        collection = agent.after(BORN_SECONDS)
    ended = {"cycle_start_timestamp_seconds": now + 40.0, "cycle_end_timestamp_seconds": now + 90.0}
    assert told(collection) == {"restarts": 5.0, "cycle": 6.0, **ended, "nodes standby": 0.0}
    assert counted(collection, "starts") == {("nightly", "restart"): 1.0}


def test_ranks_of_runs_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose ranks come and go takes no memory for ever: of too many ends the oldest attempts go."""
    monkeypatch.setattr(attempts, "_MOST_HERE", 3)
    agent = Agent(tmp_path)
    for number in range(5):
        monkeypatch.setenv("RANKWATCH_ATTEMPT", f"{number}")
        with rank(tmp_path, "steps(1)\nrun.finish()\nready()"):
            agent.after()
        agent.after()
    kept = agent.collector.attempts.of("job")
    assert [each.number for each in kept] == [2, 3, 4] and all(each.ends for each in kept)
