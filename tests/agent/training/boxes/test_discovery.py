"""Which black boxes a collector finds, which ones it refuses, and when it removes them."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch_agent.training.boxes import discovery
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.collector import RanksCollector
from support.processes.users import ALICE, BOB, node_directory, run_as
from support.training.ranks import faults, rank, state, values

__all__ = ["node_directory"]

pytestmark = pytest.mark.process


def test_ended_run_is_removed(tmp_path: Path) -> None:
    """After the retention its files are removed, and not while its process still lives on."""
    moment = [time.monotonic()]
    collector = RanksCollector(directory=tmp_path, retention_seconds=100.0, monotonic=lambda: moment[0])
    with rank(tmp_path, "steps(1)\nrun.finish()\nready()"):
        assert state(collector.collect()) == {"0": "finished"}
    moment[0] += 99.0
    assert state(collector.collect()) == {"0": "finished"}
    moment[0] += 10.0
    assert state(collector.collect()) == {}
    assert list(tmp_path.iterdir()) == []


def test_resumed_while_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new process has put its box in the place of the old one just before that is removed."""
    moment = [time.monotonic()]
    collector = RanksCollector(directory=tmp_path, retention_seconds=1.0, monotonic=lambda: moment[0])
    with rank(tmp_path, "run.finish()\nready()"):
        collector.collect()
    moment[0] += 10.0
    close = RankFollower.close
    begun: list[Writer] = []

    def begin_anew(follower: RankFollower) -> None:
        close(follower)
        begun.append(Writer(tmp_path, Identity(run="job"), phases=()))

    monkeypatch.setattr(RankFollower, "close", begin_anew)
    collector.collect()
    monkeypatch.undo()
    assert len(begun) == 1
    assert [path.name for path in (tmp_path / "job").glob("*.*")] == ["0.blackbox"]


def test_attempts_between_two_looks(tmp_path: Path, collector: RanksCollector) -> None:
    """A job that fails faster than the agent looks loses no attempt: their boxes are kept."""
    for number in range(6):
        variables = ("env", f"RANKWATCH_ATTEMPT={number}")
        with rank(tmp_path, "steps(1)\nrun.finish()\nready()", prefix=variables):
            if number in (0, 5):
                collection = collector.collect()
    settled = 4  # of five that were seen: the step of the last one is not settled yet
    assert values(collection, "rankwatch_steps_total") == {("job", "0"): settled}


def test_rank_in_tick_of_listing(tmp_path: Path, collector: RanksCollector) -> None:
    """A rank is found although its directory has the same mtime as when it was listed."""
    with rank(tmp_path, "ready()", world=2):
        collector.collect()
        before = (tmp_path / "job").stat()
        with rank(tmp_path, "ready()", number=1, world=2):
            os.utime(tmp_path / "job", ns=(before.st_atime_ns, before.st_mtime_ns))
            assert set(state(collector.collect())) == {"0", "1"}


def test_unremovable_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An agent without the right to remove them still forgets the run, and says so once."""
    moment = [time.monotonic()]
    collector = RanksCollector(directory=tmp_path, retention_seconds=1.0, monotonic=lambda: moment[0])
    with rank(tmp_path, "run.finish()\nready()"):
        collector.collect()
    (tmp_path / "job" / f".0.blackbox.{os.getpid()}.removed").mkdir()  # no file can be moved to its place
    moment[0] += 10.0
    for _ in range(3):
        assert state(collector.collect()) == {}
        os.utime(tmp_path / "job")  # has the directory listed again
    assert (tmp_path / "job" / "0.blackbox").exists()
    assert sum("could not remove" in each.getMessage() for each in caplog.records) == 1


def test_odd_files(tmp_path: Path, collector: RanksCollector, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted and named in the log once; the healthy rank beside them is exported all the same."""
    run = tmp_path / "odd"
    run.mkdir()
    (run / "0.blackbox").write_bytes(os.urandom(8192))
    (run / "1.blackbox").write_bytes(b"")
    (run / "2.blackbox").symlink_to("/etc/passwd")
    (run / "3.blackbox").mkdir()
    (run / "x.blackbox").write_bytes(b"")
    os.mkfifo(run / "4.blackbox")
    (tmp_path / "file").write_text("no run")
    (tmp_path / "link").symlink_to("/")
    with rank(tmp_path, "steps(2)\nready()"):
        (run / "5.blackbox").write_bytes((tmp_path / "job" / "0.blackbox").read_bytes())
        for _ in range(5):
            collection = collector.collect()
            os.utime(run)  # has the directory listed again
    assert state(collection) == {"0": "running"}
    once = dict.fromkeys(("garbage", "truncated", "symlink", "name", "mismatch"), 1.0)
    assert faults(collection) == {**once, "not_a_file": 2.0}
    assert len(caplog.records) == 7
    assert str(run / "1.blackbox") in caplog.text


def test_thousand_runs(tmp_path: Path) -> None:
    """At most `max_runs` are followed, the newest first."""
    for number in range(1000):
        run = tmp_path / f"old{number}"
        run.mkdir()
        os.utime(run, (number, number))
    collector = RanksCollector(directory=tmp_path, max_runs=3)
    with rank(tmp_path, "steps(2)\nready()"):
        collection = collector.collect()
        assert state(collection) == {"0": "running"}


def test_missing_directory(tmp_path: Path) -> None:
    """A missing directory is no fault. No job has run on this node yet."""
    collection = RanksCollector(directory=tmp_path / "none").collect()
    assert values(collection, "rankwatch_blackboxes") == {(): 0.0}


def test_odd_run_names(tmp_path: Path, collector: RanksCollector) -> None:
    """Quotes, newlines, bytes that are no UTF-8 and a very long name: a fault or a label, never a crash."""
    with rank(tmp_path, "steps(2)\nready()"):
        content = (tmp_path / "job" / "0.blackbox").read_bytes()
        for name in (b'qu"ote\n\\', b"\xff\xfe", b"x" * 250):
            run = os.fsencode(tmp_path) + b"/" + name
            os.mkdir(run)  # noqa: PTH102 - a name that is no text
            for claimed in (b"job", name[:128]):
                at = struct.calcsize("<8sIIIIQQQQQiiiiddd")
                box = content[:at] + claimed.ljust(128, b"\0") + content[at + 128 :]
                with open(run + (b"/0.blackbox" if claimed == b"job" else b"/1.blackbox"), "wb") as file:
                    file.write(box)
        collection = collector.collect()
    assert state(collection)["0"] == "running"
    assert sum(faults(collection).values()) == 6.0


@contextmanager
def as_nobody() -> Iterator[None]:
    """Another user for a while; only root can become one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_strict_umask(node_directory: Path) -> None:
    """A black box tells nothing secret, and the agent has a user of its own: the trainer is still seen."""
    with rank(node_directory, "steps(1); ready()", before="os.umask(0o077)"), as_nobody():
        collected = RanksCollector(directory=node_directory).collect()
    assert values(collected, "rankwatch_blackboxes") == {(): 1}


@pytest.mark.parametrize("closed", ["job", "job/0.blackbox"])
def test_closed_run(node_directory: Path, closed: str) -> None:
    """It is a fault: else a node whose runs cannot be read looks like one without. Once opened it is read."""
    collector = RanksCollector(directory=node_directory)
    with rank(node_directory, "steps(1); ready()"):
        mode = (node_directory / closed).stat().st_mode
        (node_directory / closed).chmod(0)
        with as_nobody():
            collected = collector.collect()
        assert values(collected, "rankwatch_blackboxes") == {(): 0}
        assert faults(collected) == {"unreadable": 1}
        (node_directory / closed).chmod(mode)
        os.utime(node_directory / "job")
        with as_nobody():
            assert values(collector.collect(), "rankwatch_blackboxes") == {(): 1}


def test_boxes_that_cannot_be_removed(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without the right to remove them remembers a bounded number, of each user some."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(discovery, "remove_rank", refuse)
    monkeypatch.setattr(discovery, "_MOST_REMEMBERED", 4)
    run_as(BOB, node_directory, "box('other', 0, capacity=256, age=10.0)")
    run_as(ALICE, node_directory, "for n in range(9): box(f'fake{n}', 0, capacity=256, age=10.0)")
    collector = RanksCollector(directory=node_directory, retention_seconds=5.0)
    for _ in range(3):
        collector.collect()
    kept = [path.parent.name for path in collector._discovery._forgotten]
    assert len(kept) == 4 and "other" in kept
