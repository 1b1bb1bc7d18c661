"""`Work.wait` while the hook is installed: every operation gets its end, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from rankwatch.collectives import host_waits
from rankwatch.collectives.host_waits import WorkWaits
from support.jobs.gloo import Recording, gloo

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


class FakeCall:
    """A fake call that notes which of its methods are called."""

    def __init__(self, fails: bool = False) -> None:
        self.noted: list[Any] = []
        self.fails = fails

    def wait_began(self, moment: float) -> None:
        self._note("began")

    def wait_ended(self, began: float, ended: float, *, failed: bool) -> None:
        assert began <= ended
        self._note("failed" if failed else "ended")

    def abandoned(self) -> None:
        self._note("abandoned")

    def _note(self, what: str) -> None:
        self.noted.append(what)
        if self.fails:
            raise ArithmeticError(what)


@pytest.fixture
def follower(recording: Recording) -> Iterator[WorkWaits]:
    found = WorkWaits(dist.Work, recording.failures)
    yield found
    found.remove()


class Endless(dist.Work):  # type: ignore[misc,name-defined]
    """A work implemented in Python, like those of torchft."""

    def wait(self, timeout: timedelta = timedelta(milliseconds=1)) -> bool:
        return super().wait(timeout)  # type: ignore[no-any-return]


class Plain(dist.Work):  # type: ignore[misc,name-defined]
    """A work that inherits `wait` from PyTorch."""


def test_wait(follower: WorkWaits) -> None:
    """The call is informed of the beginning and the end of the wait."""
    with gloo() as group:
        call = FakeCall()
        work = group._reduce_scatter_base(torch.ones(1), torch.ones(1))
        follower.follow(work, call)  # type: ignore[arg-type]
        assert call.noted == []
        work.wait()
        assert call.noted == ["began", "ended"]


def test_failing_wait(follower: WorkWaits) -> None:
    """It raises as it does without the hook, also for works implemented in Python, and the call is
    informed."""
    for work in (Plain(), Endless()):
        with pytest.raises(Exception, match=r"[Tt]ime"):
            work.wait(timedelta(milliseconds=1))
    call, work = FakeCall(), Plain()
    follower.follow(work, call)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"[Tt]ime"):
        work.wait(timedelta(milliseconds=1))
    assert call.noted == ["began", "failed"]


def test_abandoned_work(follower: WorkWaits) -> None:
    """A work is abandoned when the trainer has dropped it and enqueues the next one, or when the hook is
    removed."""
    first, second, third = FakeCall(), FakeCall(), FakeCall()
    follower.follow(Plain(), first)  # type: ignore[arg-type]
    assert first.noted == []
    kept = Plain()
    follower.follow(kept, second)  # type: ignore[arg-type]
    assert first.noted == ["abandoned"]
    follower.follow(Plain(), third)  # type: ignore[arg-type]
    assert second.noted == []
    follower.remove()
    assert (second.noted, third.noted) == (["abandoned"], ["abandoned"])
    follower.remove()
    del kept
    assert second.noted == ["abandoned"]


def test_bound(follower: WorkWaits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound an operation counts as abandoned at once."""
    monkeypatch.setattr(host_waits, "MOST_FOLLOWED", 2)
    works, calls = [Plain() for _ in range(3)], [FakeCall() for _ in range(3)]
    for work, call in zip(works, calls, strict=True):
        follower.follow(work, call)  # type: ignore[arg-type]
    assert [call.noted for call in calls] == [[], [], ["abandoned"]]


def test_own_failures(follower: WorkWaits, recording: Recording) -> None:
    """Failures at the beginning, at the end and on abandoning are counted, and the wait returns as usual."""
    with gloo() as group:
        work = group._reduce_scatter_base(torch.ones(1), torch.ones(1))
        follower.follow(work, FakeCall(fails=True))  # type: ignore[arg-type]
        work.wait()
        assert recording.errors == 2
    follower.follow(Plain(), FakeCall(fails=True))  # type: ignore[arg-type]
    follower.remove()
    assert recording.errors == 3


def test_restored_wait(recording: Recording) -> None:
    """Removing the hook restores the original `wait`, unless another tool has replaced ours since."""
    found = dist.Work.__dict__["wait"]
    ours = WorkWaits(dist.Work, recording.failures)
    assert dist.Work.__dict__["wait"] is not found
    ours.remove()
    assert dist.Work.__dict__["wait"] is found

    class Other:
        def wait(self) -> str:
            return "waited"

    replaced = WorkWaits(Other, recording.failures)
    theirs = Other.wait
    Other.wait = lambda self: theirs(self) + " twice"  # type: ignore[method-assign]
    kept = Other.wait
    replaced.remove()
    assert Other.wait is kept
    assert Other().wait() == "waited twice"
