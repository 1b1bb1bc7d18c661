"""The sweep removes old boxes, for nodes without an agent, and never the box of a living rank."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch.sweep import SUFFIXES_BESIDE, sweep
from rankwatch.untrusted.folders import Folder
from support.processes.python import python
from support.processes.users import ALICE, CAROL, run_as
from support.training.blackbox import header

pytestmark = pytest.mark.process


def leave_a_box(directory: Path, run: str) -> Path:
    """Create a box whose process has ended."""
    code = f"import rankwatch\nwith rankwatch.start(run={run!r}): pass"
    python(code, directory=directory, check=True)
    return directory / run / "0.blackbox"


SWEEP = """
import pathlib, sys
from rankwatch.sweep import Folder, sweep
sweep(Folder.open(pathlib.Path(sys.argv[1])), kept_seconds=float(sys.argv[2]))
"""
"""Of another process: a lock of this one is none to itself."""


def swept(directory: Path, *, kept_seconds: float = 86400.0, most_bytes: int = 0) -> None:
    with Folder.open(directory) as boxes:
        sweep(boxes, kept_seconds=kept_seconds, most_bytes=most_bytes)


def test_old_box(tmp_path: Path) -> None:
    """A box stays for a day after its last activity. Then it is removed with its directory."""
    path = leave_a_box(tmp_path, "old")
    swept(tmp_path)
    assert path.exists()
    swept(tmp_path, kept_seconds=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_young_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that was created within the day is not opened: a node may keep thousands, and training waits."""
    leave_a_box(tmp_path, "young")
    opened: list[Path] = []
    monkeypatch.setattr("rankwatch.sweep.Reader", lambda path, folder: opened.append(path))
    swept(tmp_path)
    assert opened == []


def test_share_of_the_file_system(node_directory: Path) -> None:
    """A user's ended runs give way to what that user writes, not to what others do."""
    run_as(ALICE, node_directory, "box('large', 0, age=10.0).write_bytes(bytes(4 << 20))")
    own = leave_a_box(node_directory, "own")
    most = 2 * sum(each.stat().st_blocks * 512 for each in own.parent.iterdir())
    swept(node_directory, most_bytes=2 * most)
    assert own.exists()
    (node_directory / "more").mkdir()
    (node_directory / "more" / "0.lines").write_bytes(bytes(2 * most))
    swept(node_directory, most_bytes=2 * most)
    assert not own.exists()


def test_no_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training waits for a sweep, so that it ends where others have put millions of files."""
    path = leave_a_box(tmp_path, "old")
    monkeypatch.setattr("rankwatch.sweep._MOST_SECONDS", 0.0)
    swept(tmp_path, kept_seconds=-1.0, most_bytes=1)
    assert path.exists()


def test_living_rank(tmp_path: Path) -> None:
    """Its box is never removed, however old it is. Files that are not boxes stay too."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "0.blackbox").write_text("no box")
    living = Writer(tmp_path, Identity(run="live"), phases=())
    python(SWEEP, str(tmp_path), "-1", check=True)
    assert living.path.exists()
    assert (tmp_path / "odd" / "0.blackbox").exists()


def test_sweep_on_start(tmp_path: Path) -> None:
    """The start of the next run removes an old box."""
    path = leave_a_box(tmp_path, "past")
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    began = header(path).started_wall - 2 * 86400
    struct.pack_into("<d", content, 88, began)  # header: start on the wall clock
    path.write_bytes(content)
    os.utime(path, (began, began))
    rankwatch.start(run="next", directory=tmp_path).finish()
    assert not path.exists()


def test_directory_removed_during_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is created again. All ranks of a resumed run start at once, and one of them sweeps."""
    (tmp_path / "resumed").mkdir()
    link = os.link
    removed: list[str] = []

    def sweep_first(hidden: str, name: str, **folders: int) -> None:
        if not removed:  # by another rank, after the directory was created and before the box is
            removed.append(name)
            (tmp_path / "resumed").rmdir()
        link(hidden, name, **folders)

    monkeypatch.setattr(os, "link", sweep_first)
    Writer(tmp_path, Identity(run="resumed"), phases=())
    assert removed == ["0.blackbox"]
    assert (tmp_path / "resumed" / "0.blackbox").exists()


def test_box_replaced_during_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may create its new box after the sweep has read the old one. The new box must stay."""
    path = leave_a_box(tmp_path, "resumed")
    close = Reader.close
    begun: list[Writer] = []

    def begin_anew(reader: Reader) -> None:
        close(reader)
        begun.append(Writer(tmp_path, Identity(run="resumed"), phases=()))

    monkeypatch.setattr(Reader, "close", begin_anew)
    swept(tmp_path, kept_seconds=-1.0)
    monkeypatch.undo()
    assert len(begun) == 1
    assert [each.name for each in path.parent.glob("*.*")] == ["0.blackbox"]
    assert header(path).pid == os.getpid()


def test_hidden_box(tmp_path: Path) -> None:
    """The box of a process that was killed before its rank was known goes. One that still waits stays."""
    dead, waiting = (Writer(tmp_path, None, phases=()) for _ in range(2))
    for each in (dead, waiting):
        os.utime(each.path, (1.0, 1.0))
    fresh = Writer(tmp_path, None, phases=())
    dead.unlock()
    fresh.unlock()
    python(SWEEP, str(tmp_path), "86400", check=True)
    assert sorted(tmp_path.iterdir()) == sorted([waiting.path, fresh.path])


def test_all_that_a_rank_leaves(tmp_path: Path) -> None:
    """What stands beside a box goes with it, also traces and notes that were not completed. A folder in the
    place of a file stays, and keeps nothing else."""
    path = leave_a_box(tmp_path, "old")
    for suffix in SUFFIXES_BESIDE:
        path.with_suffix(suffix).write_text("")
    (path.parent / ".0.checkpoints.new").write_text("")
    path.with_suffix(".profile").mkdir()
    (path.with_suffix(".profile") / "rank0_step1.json.gz").write_text("")
    path.with_suffix(".sock").unlink()
    path.with_suffix(".sock").mkdir()
    swept(tmp_path, kept_seconds=-1.0)
    assert [each.name for each in path.parent.iterdir()] == ["0.sock"]


SWAP = """
run = directory / "job"
run.rename(directory / "before")
run.symlink_to(arguments[0])
"""
"""The owner of a run's folder puts a link to somebody else's folder in its place."""


@pytest.mark.parametrize("call", range(4))
def test_folder_that_becomes_a_link(node_directory: Path, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root removes nothing where the link leads, whenever it is put there. A trainer of root would else empty
    a home of mode 0700, into which the owner of the run cannot even look.

    call: the number of the call that changes the folder, before which the link is put there.
    """
    home = node_directory.parent / "home"
    (home / "earlier").mkdir(parents=True)
    names = ["0.blackbox", *(f"0{suffix}" for suffix in SUFFIXES_BESIDE), "earlier/0-1.blackbox"]
    for name in names:
        (home / name).write_text("mine")
    for path in (home, *home.rglob("*")):
        os.chown(path, CAROL, CAROL)
    home.chmod(0o700)
    node_directory.chmod(0o777)  # as an owner of the directory may have it
    run_as(ALICE, node_directory, "box('job', 0)")
    calls = []

    def swap_before(function: Callable[..., None], *arguments: str, **folders: int) -> None:
        calls.append(arguments)
        if len(calls) == call + 1:
            run_as(ALICE, node_directory, SWAP, str(home))
        function(*arguments, **folders)

    for function in (os.rename, os.unlink):
        monkeypatch.setattr(os, function.__name__, partial(swap_before, function))
    swept(node_directory, kept_seconds=-1.0)
    assert len(calls) > call
    assert [name for name in names if not (home / name).exists()] == []
