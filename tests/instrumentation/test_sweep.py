"""The sweep removes old boxes, for nodes without an agent, and never the box of a living rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from rankwatch.sweep import sweep

pytestmark = pytest.mark.process


def leave_a_box(directory: Path, run: str) -> Path:
    """Create a box whose process has ended."""
    code = f"import rankwatch\nwith rankwatch.start(run={run!r}): pass"
    env = {**os.environ, "RANKWATCH_DIR": str(directory)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return directory / run / "0.blackbox"


def test_old_box(tmp_path: Path) -> None:
    """A box stays for a day after its last activity. Then it is removed with its directory."""
    path = leave_a_box(tmp_path, "old")
    sweep(tmp_path)
    assert path.exists()
    sweep(tmp_path, kept_seconds=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_young_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that was created within the day is not opened: a node may keep thousands, and training waits."""
    leave_a_box(tmp_path, "young")
    opened: list[Path] = []
    monkeypatch.setattr("rankwatch.sweep.Reader", opened.append)
    sweep(tmp_path)
    assert opened == []


def test_living_rank(tmp_path: Path) -> None:
    """Its box is never removed, however old it is. Files that are not boxes stay too."""
    code = (
        "import sys, rankwatch\nrun = rankwatch.start(run='live')\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "0.blackbox").write_text("no box")
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sweep(tmp_path, kept_seconds=-1.0)
        assert (tmp_path / "live" / "0.blackbox").exists()
        assert (tmp_path / "odd" / "0.blackbox").exists()


def test_sweep_on_start(tmp_path: Path) -> None:
    """The start of the next run removes an old box."""
    path = leave_a_box(tmp_path, "past")
    with path.open("r+b") as file:  # header: start on the wall clock, two days earlier
        at = 88
        file.seek(at)
        import struct

        (wall,) = struct.unpack("<d", file.read(8))
        file.seek(at)
        file.write(struct.pack("<d", wall - 2 * 86400))
    os.utime(path, (wall - 2 * 86400,) * 2)
    rankwatch.start(run="next", directory=tmp_path).finish()
    assert not path.exists()


def test_directory_removed_during_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is created again. All ranks of a resumed run start at once, and one of them sweeps."""
    (tmp_path / "resumed").mkdir()
    link = os.link
    swept: list[Path] = []

    def sweep_first(hidden: Path, path: Path) -> None:
        if not swept:  # by another rank, after the directory was created and before the box is
            swept.append(path.parent)
            path.parent.rmdir()
        link(hidden, path)

    monkeypatch.setattr(os, "link", sweep_first)
    Writer(tmp_path, Identity(run="resumed"), phases=())
    assert swept == [tmp_path / "resumed"]
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
    sweep(tmp_path, kept_seconds=-1.0)
    monkeypatch.undo()
    assert len(begun) == 1
    assert [each.name for each in path.parent.glob("*.*")] == ["0.blackbox"]
    reader = Reader(path)
    assert reader.header.pid == os.getpid()
    reader.close()


def test_hidden_box(tmp_path: Path) -> None:
    """The box of a process that was killed before its rank was known goes. One that still waits stays."""
    dead, waiting = (Writer(tmp_path, None, phases=()) for _ in range(2))
    for each in (dead, waiting):
        os.utime(each.path, (1.0, 1.0))
    fresh = Writer(tmp_path, None, phases=())
    dead.unlock()
    fresh.unlock()
    code = f"import pathlib, rankwatch.sweep as sweep; sweep.sweep(pathlib.Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted(tmp_path.iterdir()) == sorted([waiting.path, fresh.path])
