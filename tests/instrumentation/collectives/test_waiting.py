"""`Work.wait` while the hook is installed: every operation ends, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rankwatch.collectives import waiting
from rankwatch.collectives.waiting import Waiting
from support.jobs.gloo import Recording, gloo

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


class Told:
    """Stands for a call: writes down what it is told."""

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
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def follower(recording: Recording) -> Iterator[Waiting]:
    found = Waiting(dist.Work, recording.failures)
    yield found
    found.remove()


class Endless(dist.Work):  # type: ignore[misc,name-defined]
    """A work that Python implements, as torchft's are."""

    def wait(self, timeout: timedelta = timedelta(milliseconds=1)) -> bool:
        return super().wait(timeout)  # type: ignore[no-any-return]


class Plain(dist.Work):  # type: ignore[misc,name-defined]
    """One that leaves `wait` to PyTorch."""


def test_a_wait_is_told_from_its_begin_to_its_end(follower: Waiting) -> None:
    """Once; a second wait for the same work is none of ours."""
    with gloo() as group:
        call = Told()
        work = group._reduce_scatter_base(torch.ones(1), torch.ones(1))
        follower.follow(work, call)  # type: ignore[arg-type]
        assert call.noted == []
        work.wait()
        assert call.noted == ["began", "ended"]


def test_a_wait_that_fails_raises_as_it_would_have(follower: Waiting) -> None:
    """And is told as failed; works that Python implements are no exception."""
    for work in (Plain(), Endless()):
        with pytest.raises(Exception, match=r"[Tt]ime"):
            work.wait(timedelta(milliseconds=1))
    call, work = Told(), Plain()
    follower.follow(work, call)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"[Tt]ime"):
        work.wait(timedelta(milliseconds=1))
    assert call.noted == ["began", "failed"]


def test_abandoned_work(follower: Waiting) -> None:
    """When the trainer has dropped it and the next one is enqueued, or when the hook is taken out."""
    first, second, third = Told(), Told(), Told()
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


def test_what_is_followed_is_bounded(follower: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound an operation ends at once."""
    monkeypatch.setattr(waiting, "MOST_FOLLOWED", 2)
    works, calls = [Plain() for _ in range(3)], [Told() for _ in range(3)]
    for work, call in zip(works, calls, strict=True):
        follower.follow(work, call)  # type: ignore[arg-type]
    assert [call.noted for call in calls] == [[], [], ["abandoned"]]


def test_our_own_failures_are_counted_and_the_wait_goes_on(follower: Waiting, recording: Recording) -> None:
    """At its begin, at its end, and where it is let go."""
    with gloo() as group:
        work = group._reduce_scatter_base(torch.ones(1), torch.ones(1))
        follower.follow(work, Told(fails=True))  # type: ignore[arg-type]
        work.wait()
        assert recording.errors == 2
    follower.follow(Plain(), Told(fails=True))  # type: ignore[arg-type]
    follower.remove()
    assert recording.errors == 3


def test_the_wait_that_was_found_is_put_back(recording: Recording) -> None:
    """Unless another tool has replaced ours since."""
    found = dist.Work.__dict__["wait"]
    ours = Waiting(dist.Work, recording.failures)
    assert dist.Work.__dict__["wait"] is not found
    ours.remove()
    assert dist.Work.__dict__["wait"] is found

    class Other:
        def wait(self) -> str:
            return "waited"

    replaced = Waiting(Other, recording.failures)
    theirs = Other.wait
    Other.wait = lambda self: theirs(self) + " twice"  # type: ignore[method-assign]
    kept = Other.wait
    replaced.remove()
    assert Other.wait is kept
    assert Other().wait() == "waited twice"
