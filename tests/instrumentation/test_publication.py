"""When a black box gets its place, for a rank that becomes known only after `start`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import IdentityError
from rankwatch.identity import Identity
from rankwatch.publication import Publication
from support.agent.process import until


class Job:
    """A process whose rank others decide. `identity` is what is known of it."""

    def __init__(self, directory: Path) -> None:
        self.writer = Writer(directory, None, phases=())
        self.identity: Identity | None = None
        self.at_last: Identity | IdentityError = Identity(run="alone")
        self.published: list[tuple[str, bool]] = []
        self.publication = Publication(
            self.writer,
            self.identify,
            self.writer.publish,
            lambda found, ending: self.published.append((found.run, ending)),
        )

    def identify(self, last: bool, ask: bool) -> Identity | None:
        if self.identity is None and last:
            if isinstance(self.at_last, IdentityError):
                raise self.at_last
            return self.at_last
        return self.identity


def looking() -> bool:
    return any(each.name == "rankwatch-start" for each in threading.enumerate())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A process that does not know its rank, and whose box waits for it."""
    job = Job(tmp_path)
    assert not job.publication.begin()
    job.publication.expect(wait=False)
    assert looking()
    return job


def test_known_later(job: Job, tmp_path: Path) -> None:
    """The box appears as soon as the rank is known, with what was recorded before. The thread then ends."""
    job.writer.integers[Now.ERRORS] = 7
    assert not list(tmp_path.glob("*/*"))
    job.identity = Identity(run="job", rank=1, world_size=2)
    until(lambda: bool(job.published), "the box")
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["1.blackbox"]
    assert job.published == [("job", False)]
    until(lambda: not looking(), "the end of the thread")


def test_first_step(job: Job) -> None:
    """From the first step on nothing more is expected: by then a rank is in its process group."""
    job.writer.floats[Now.STEP_BEGAN] = 1.0
    until(lambda: job.published == [("alone", False)], "the box")


def test_before_the_first_step(job: Job) -> None:
    """The box is there before a process of its own trains: it may end at any moment after. Ranks that must
    agree on a name go on meanwhile."""
    job.publication.training_begins(alone=False)
    assert job.published == []
    job.publication.training_begins(alone=True)
    assert job.published == [("alone", False)]


@pytest.mark.parametrize("helper", [False, True])
def test_end(job: Job, tmp_path: Path, helper: bool) -> None:
    """A run that ends before its rank is known is recorded by what is known then. A process that did nothing
    a rank does leaves nothing."""
    job.publication.conclude(discard=helper)
    assert job.published == ([] if helper else [("alone", True)])
    assert [each.name for each in tmp_path.rglob("*.*")] == ([] if helper else ["0.blackbox"])
    assert not looking()


def test_never_known(job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process that others cannot be told from is not recorded. One line says so; it can still write."""
    job.at_last = IdentityError("WORLD_SIZE is 2, but nothing gives this process its rank")
    job.writer.floats[Now.STEP_BEGAN] = 1.0
    until(lambda: not looking(), "the end of the thread")
    assert [each.message for each in caplog.records] == [f"rankwatch records nothing: {job.at_last}"]
    assert list(tmp_path.iterdir()) == []
    job.writer.integers[Now.ERRORS] = 1
    job.publication.conclude(discard=False)
    assert job.published == []


def test_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the run waits for it a moment, and then does without."""
    monkeypatch.setattr("rankwatch.publication._END_SECONDS", 0.1)
    job = Job(tmp_path)
    answer = threading.Event()

    def identify(last: bool, ask: bool) -> Identity | None:
        if ask:
            answer.wait()
        return job.at_last if last and not ask else None  # type: ignore[return-value]

    publication = Publication(job.writer, identify, job.writer.publish, lambda found, ending: None)
    publication.expect(wait=False)
    publication.conclude(discard=False)
    answer.set()
    assert (tmp_path / "alone" / "0.blackbox").exists()
    until(lambda: not looking(), "the end of the thread")
