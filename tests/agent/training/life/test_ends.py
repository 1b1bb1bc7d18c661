"""How an attempt ended: the rank that failed first, not its victims; and attempts of users by class."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.states import FailureKind, Outcome, RankState
from rankwatch_agent.training.boxes.run_directories import BoxFaults
from rankwatch_agent.training.life import series
from rankwatch_agent.training.life.attempts import Attempt
from rankwatch_agent.training.life.ends import AttemptEnd, RankEnd, StopRequest, judge
from rankwatch_agent.training.life.failures import Failure
from rankwatch_agent.training.life.series import BORN_SECONDS, MOST_CLASSES, OTHER_CLASS, LifeCounters

OWN = Failure("ValueError", FailureKind.EXCEPTION, "no", "train.py:1 in step")
PEER = Failure("RuntimeError", FailureKind.COLLECTIVE, "Connection closed by peer")
KILLED = Failure("SIGKILL", FailureKind.HOST_OUT_OF_MEMORY, "Memory cgroup out of memory: Killed process 7")
ABORT = Failure("SIGABRT", FailureKind.WATCHDOG_ABORT, "Watchdog caught collective operation timeout")


def end(
    rank: int,
    state: str,
    ended: float,
    failure: Failure | None = None,
    *,
    in_collective: bool = False,
    sigterm: float | None = None,
) -> RankEnd:
    return RankEnd(rank, RankState(state), failure, in_collective, 0.0, ended, sigterm)


def test_root_cause_before_victims() -> None:
    """The rank with an error of its own, although its peers were seen to end earlier."""
    ended = judge(
        [
            end(0, "failed", 9.0, PEER, in_collective=True),
            end(1, "failed", 10.0, OWN),
            end(2, "terminated", 8.0, sigterm=11.0),
            end(3, "lost", 7.0, ABORT),
        ]
    )
    assert ended == AttemptEnd(
        Outcome.FAILED, FailureKind.EXCEPTION, 1, "ValueError", "no", "train.py:1 in step"
    )


def test_first_of_several_errors() -> None:
    ended = judge([end(0, "failed", 10.0, OWN), end(1, "failed", 9.0, OWN)])
    assert ended.rank == 1


def test_killed_by_the_kernel() -> None:
    """The kernel's line is the message. Its victim is the cause, and not the ranks that lost their peer."""
    ended = judge([end(0, "failed", 5.0, PEER), end(1, "lost", 6.0, KILLED)])
    assert (ended.outcome, ended.kind, ended.rank) == (Outcome.FAILED, FailureKind.HOST_OUT_OF_MEMORY, 1)
    assert ended.message == KILLED.message


def test_lost_process() -> None:
    """SIGKILL of unknown origin. After SIGTERM it is the end of the time that the launcher gives."""
    ended = judge([end(0, "lost", 5.0), end(1, "terminated", 6.0, sigterm=6.0)])
    assert (ended.outcome, ended.kind, ended.rank) == (Outcome.LOST, FailureKind.LOST, 0)
    assert judge([end(0, "lost", 5.0, sigterm=5.0)]) == AttemptEnd(Outcome.TERMINATED)


def test_errors_after_sigterm() -> None:
    """A trainer whose handler of SIGTERM raises or exits has not failed."""
    exit_status = Failure("SystemExit", FailureKind.EXIT_STATUS, "143")
    assert judge([end(0, "failed", 5.0, exit_status, sigterm=4.0)]) == AttemptEnd(Outcome.TERMINATED)
    assert judge([end(0, "failed", 5.0, exit_status, sigterm=9.0)]).outcome is Outcome.FAILED


def test_preempted() -> None:
    """The trainer or a notice says so. What failed before was no preemption: torchrun ends the others."""
    assert judge([end(0, "preempted", 5.0), end(1, "terminated", 6.0)]).outcome is Outcome.PREEMPTED
    assert judge([end(0, "preempted", 5.0), end(1, "failed", 6.0, OWN)]).outcome is Outcome.PREEMPTED
    assert judge([end(0, "preempted", 5.0), end(1, "failed", 4.0, OWN)]).rank == 1
    assert judge([end(0, "preempted", 5.0), end(1, "lost", 3.0)]).outcome is Outcome.LOST
    notice = StopRequest(2.0, "terminate at 12:00")
    noticed = judge([end(0, "terminated", 6.0), end(1, "lost", 6.0)], [notice])
    assert noticed == AttemptEnd(Outcome.PREEMPTED, message="terminate at 12:00")


def test_watchdog() -> None:
    """Its abort is the cause where no rank failed before, as when the network hangs."""
    ended = judge([end(0, "lost", 5.0, ABORT), end(1, "terminated", 6.0)])
    assert (ended.outcome, ended.kind, ended.rank) == (Outcome.FAILED, FailureKind.WATCHDOG_ABORT, 0)


def test_victims_of_another_node() -> None:
    """Nobody here is to blame for a failed collective, nor for SIGTERM."""
    ended = judge([end(0, "failed", 5.0, PEER), end(1, "failed", 5.1, OWN, in_collective=True)])
    assert (ended.outcome, ended.kind, ended.rank) == (Outcome.FAILED, FailureKind.COLLECTIVE, None)
    assert not ended.has_root_cause
    assert judge([end(0, "terminated", 5.0)]) == AttemptEnd(Outcome.TERMINATED)


def test_orderly_ends() -> None:
    assert judge([end(0, "finished", 5.0), end(1, "finished", 6.0)]) == AttemptEnd(Outcome.FINISHED)
    assert judge([end(0, "finished", 5.0), end(1, "exited", 6.0)]) == AttemptEnd(Outcome.EXITED)
    assert judge([end(0, "interrupted", 5.0), end(1, "failed", 6.0, PEER)]).outcome is Outcome.INTERRUPTED


def attempt(run_class: str, owner: int) -> Attempt:
    """One that has started, at 100 s."""
    return Attempt(0, run_class, 1, 0, 0, started=100.0, first_rank_started_wall=100.0, owner=owner)


def starts(counts: LifeCounters) -> dict[str, float]:
    """First starts by class."""
    found = (each for each in counts.series() if each.metric.name == "rankwatch_run_starts_total")
    return {each.labels[0]: each.value for each in found if each.labels[1] == "first"}


def test_classes_of_one_user(tmp_path: Path) -> None:
    """A user with a hundred classes takes no other one's away, before or after it came."""
    many = {(f"fake{n}", 0): attempt(f"class{n}", 2) for n in range(100)}
    early, late = {("early", 0): attempt("production", 1)}, {("late", 0): attempt("research", 3)}
    counts = LifeCounters(tmp_path, 0.0)
    for moment, attempts in ((100.0, early | many), (101.0, early | many | late)):
        counts.update(attempts, moment, 0.0, BoxFaults())
    for _ in range(2):
        counts.update(many | late | early, 102.0 + BORN_SECONDS, 0.0, BoxFaults())
        found = starts(counts)
        assert found["production"] == found["research"] == 1.0
        assert len(found) == MOST_CLASSES + 1 and OTHER_CLASS in found
        counts = LifeCounters(tmp_path, 0.0)


def test_class_that_another_user_brought_first(tmp_path: Path) -> None:
    """It stays for the others who use it, when it was brought by the user with most classes."""
    many = {(f"fake{n}", 0): attempt(f"class{n}", 2) for n in reversed(range(MOST_CLASSES))}
    counts = LifeCounters(tmp_path, 0.0)
    counts.update(many, 100.0, 0.0, BoxFaults())
    counts.update(many | {("job", 0): attempt("class0", 1)}, 101.0, 0.0, BoxFaults())
    counts.update(many | {("other", 0): attempt("research", 3)}, 102.0, 0.0, BoxFaults())
    assert {"class0", "research"} < starts(counts).keys()


def test_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many attempts of others come and go, or are there at once."""
    monkeypatch.setattr(series, "_MOST_COUNTED", 4)
    counts, job = LifeCounters(None, 0.0), {("job", 0): attempt("production", 1)}
    counts.update(job, 100.0, 0.0, BoxFaults())
    for n in range(10):
        many = {(f"fake{n}-{each}", 0): attempt("", 2) for each in range(10)}
        counts.update(job | many, 200.0 + n, 0.0, BoxFaults())
    assert starts(counts)["production"] == 1.0
