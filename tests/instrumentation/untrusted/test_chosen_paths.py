"""Files at paths that a user chose: read with the rights of that user, without waiting for any of them."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from rankwatch.untrusted.children import Owner
from rankwatch.untrusted.chosen_paths import UNANSWERED, Answer, PathReader, Wanted, read
from support.processes.users import ALICE, BOB, node_directory

__all__ = ["node_directory"]

pytestmark = pytest.mark.process


def owned(path: Path, user: int, content: str = "content") -> Path:
    path.write_text(content)
    path.chmod(0o600)
    os.chown(path, user, user)
    return path


def answers(reader: PathReader, *paths: Path | str, most_bytes: int = 100) -> list[Answer]:
    """What a reader finds at these paths, however long that takes."""
    wanted = [Wanted(str(path), most_bytes) for path in paths]
    while (found := reader.find(wanted)) is None:
        reader.advance()
        time.sleep(0.01)
    return found


def test_what_is_read(node_directory: Path) -> None:
    """Regular files of the user, and links to them: no device, no FIFO and no file of another user."""
    mine, other = owned(node_directory / "mine", ALICE), owned(node_directory / "other", BOB)
    (node_directory / "link").symlink_to(mine)
    os.mkfifo(node_directory / "fifo")
    places = [mine, node_directory / "link", other, node_directory / "fifo", "/dev/zero", "/etc/shadow", "\0"]
    found = answers(PathReader(Owner(ALICE, ALICE)), *places, "relative")
    assert [each and each.content for each in found] == [b"content", b"content"] + [None] * 6
    assert read(Wanted(str(mine), 4), ALICE) == (b"cont", mine.stat().st_mtime)
    assert read(Wanted(str(mine), 4, from_end=True), ALICE) == (b"tent", mine.stat().st_mtime)
    assert read(Wanted(str(mine), 4), BOB) is None


def test_a_file_that_never_answers(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs itself alone: those before and behind it are read, and nobody waits for it."""
    files = [owned(node_directory / str(number), ALICE, str(number)) for number in range(4)]
    monkeypatch.setattr("rankwatch.untrusted.chosen_paths.__name__", "hanging_reader")
    (node_directory / "hanging_reader.py").write_text(
        "import sys, time\n"
        "from rankwatch.untrusted import chosen_paths\n"
        "real = chosen_paths.read\n"
        "def read(wanted, owner):\n"
        "    return time.sleep(600) if wanted.path.endswith('/2') else real(wanted, owner)\n"
        "chosen_paths.read = read\n"
        "main = chosen_paths.main\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(node_directory))
    reader = PathReader(Owner(ALICE, ALICE), seconds=2.0)
    found = answers(reader, *files)
    assert found[2] is UNANSWERED
    assert [each and each.content for each in found] == [b"0", b"1", b"", b"3"]
    assert reader.given_up == 1


def test_a_child_that_its_user_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads no question, and nobody waits for it; what nobody asks for any more is forgotten."""
    monkeypatch.setattr("rankwatch.untrusted.chosen_paths.confined", lambda *_, **__: ["sleep", "600"])
    now = [0.0]
    reader = PathReader(Owner(os.geteuid(), os.getegid()), seconds=2.0, monotonic=lambda: now[0])
    wanted = [Wanted(f"{tmp_path}/{number}{'x' * 4000}", 100) for number in range(5000)]
    with closing(reader):
        assert reader.find(wanted) is None
        for now[0], given_up in ((0.0, 0), (3.0, 1)):
            reader.advance()
            assert reader.given_up == given_up
        assert reader.find(wanted[:1]) == [UNANSWERED]
        assert len(reader._waiting) < len(wanted) / 2
        for now[0] in (100.0, 200.0):
            reader.advance()
        assert reader.idle
