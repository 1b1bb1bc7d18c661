"""Old boxes are removed where no agent does it; those of the living never are."""

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


def leave_a_box(directory: Path, run: str) -> Path:
    """A box whose process has ended."""
    code = f"import rankwatch\nwith rankwatch.start(run={run!r}): pass"
    env = {**os.environ, "RANKWATCH_DIR": str(directory)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return directory / run / "0.blackbox"


def test_a_box_is_kept_for_a_day_and_then_removed_with_its_directory(tmp_path: Path) -> None:
    """By the age of its last word."""
    path = leave_a_box(tmp_path, "old")
    sweep(tmp_path)
    assert path.exists()
    sweep(tmp_path, kept_seconds=-1.0)
    assert list(tmp_path.iterdir()) == []


def test_the_box_of_a_living_rank_is_never_removed(tmp_path: Path) -> None:
    """However old it is; and what is no box is left alone."""
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


def test_a_start_sweeps_what_is_old(tmp_path: Path) -> None:
    """A box from the past is gone once the next run has started."""
    path = leave_a_box(tmp_path, "past")
    with path.open("r+b") as file:  # header: start on the wall clock, two days earlier
        at = 88
        file.seek(at)
        import struct

        (wall,) = struct.unpack("<d", file.read(8))
        file.seek(at)
        file.write(struct.pack("<d", wall - 2 * 86400))
    rankwatch.start(run="next", directory=tmp_path).finish()
    assert not path.exists()


def test_a_directory_that_is_swept_while_a_box_is_made_in_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks of a run that is resumed after a day start at once, and one of them sweeps."""
    (tmp_path / "resumed").mkdir()
    unlink = Path.unlink
    swept: list[Path] = []

    def sweep_first(path: Path, missing_ok: bool = False) -> None:
        if not swept:  # by another rank, between the making of the directory and that of the box
            swept.append(path.parent)
            path.parent.rmdir()
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", sweep_first)
    Writer(tmp_path, Identity(run="resumed"), phases=())
    assert swept == [tmp_path / "resumed"]
    assert (tmp_path / "resumed" / "0.blackbox").exists()


def test_the_box_of_a_rank_that_starts_while_its_old_one_is_looked_at_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the place of the old one before that was removed."""
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
    assert [each.name for each in path.parent.iterdir()] == ["0.blackbox"]
    reader = Reader(path)
    assert reader.header.pid == os.getpid()
    reader.close()
