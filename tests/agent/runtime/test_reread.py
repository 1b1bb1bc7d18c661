"""Files that are read again when they change."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.reread import Reread
from support.agent.process import until


class Loader:
    """Reads a file and counts how often; refuses the content `broken`."""

    def __init__(self, path: Path) -> None:
        self.path, self.loads = path, 0

    def __call__(self) -> str:
        self.loads += 1
        text = self.path.read_text()
        if text == "broken":
            raise UserError("could not use it")
        return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("one")
    return tmp_path / "file"


def test_unchanged_file_is_read_once(path: Path) -> None:
    """However often the value is used, and also if the last change is not usable."""
    loader = Loader(path)
    value = Reread([path], loader)
    assert ([value.current() for _ in range(3)], loader.loads) == (["one"] * 3, 1)
    path.write_text("broken")
    assert ([value.current() for _ in range(3)], loader.loads) == (["one"] * 3, 2)


def test_swapped_link(path: Path) -> None:
    """It is a change, even to a file of the same size and time."""
    two, link = path.with_name("two"), path.with_name("link")
    two.write_text("two")
    for each in (path, two):
        os.utime(each, ns=(1, 1))
    link.symlink_to(path)
    value = Reread([link], Loader(link))
    assert value.current() == "one"
    link.unlink()
    link.symlink_to(two)
    assert value.current() == "two"


def test_change_during_a_read(path: Path) -> None:
    """The second of two quick writes is not lost."""

    def load() -> str:
        text = path.read_text()
        if text == "one":
            path.write_text("second")
        return text

    assert Reread([path], load).current() == "second"


@pytest.mark.process
def test_files_that_do_not_answer(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file server that is gone costs its change only: whoever asks gets the previous value, nobody waits
    for long, one thread hangs, and one line of the log says so. Once it is back, the new value is in use."""
    entered, back = threading.Event(), threading.Event()

    def load() -> str:
        text = path.read_text()
        if text == "two":
            entered.set()
            back.wait()
        return text

    value = Reread([path], load, patience_seconds=0.05)
    threads = threading.active_count()
    path.write_text("two")
    assert [value.current() for _ in range(20)] == ["one"] * 20
    assert entered.is_set() and threading.active_count() == threads + 1
    assert [each.message for each in caplog.records] == [
        f"{path}: no answer; the previous version stays in use"
    ]
    back.set()
    until(lambda: value.current() == "two", "the new value is in use")


def test_no_file(path: Path) -> None:
    """A FIFO, which waits for a writer, and a device without an end are refused, and a file in their place is
    used: at the start, and when they take the place of a file."""
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="it is not a regular file"):
        Reread([path], Loader(path))
    path.unlink()
    path.write_text("one")
    value = Reread([path], Loader(path))
    for wrong in (os.mkfifo, lambda at: at.symlink_to("/dev/zero"), os.mkdir):
        path.unlink()
        wrong(path)
        assert value.current() == "one"
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_text("two, of another size")
        assert value.current() == "two, of another size"
        path.write_text("one")
        assert value.current() == "one"
