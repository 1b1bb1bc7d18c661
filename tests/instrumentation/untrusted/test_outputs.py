"""A command of root writes into no file that somebody else has put in its way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch.untrusted.paths import create_output
from rankwatch_cli.output import write_file
from support.processes.users import BOB, node_directory, run_as

__all__ = ["node_directory"]


def test_plain_file(tmp_path: Path) -> None:
    """It is created, or emptied. A link of one's own is followed, as /dev/stdout is."""
    write_file(tmp_path / "page", "long text")
    write_file(tmp_path / "page", "text")
    (tmp_path / "link").symlink_to("page")
    write_file(tmp_path / "link", "by a link")
    assert (tmp_path / "page").read_text() == "by a link"
    write_file(Path("/dev/null"), "nothing")


@pytest.mark.process
def test_of_another_user(node_directory: Path) -> None:
    """A link of another user, and a pipe that nobody reads or that they read, are refused at once."""
    kept = node_directory.parent / "kept"
    kept.write_text("kept")
    code = (
        "folder = directory / 'folder'; folder.mkdir(); os.mkfifo(folder / 'pipe')\n"
        "(folder / 'link').symlink_to(arguments[0]); (folder / 'new').symlink_to(arguments[0] + '-new')\n"
    )
    run_as(BOB, node_directory, code, str(kept))
    folder = node_directory / "folder"
    for name in ("link", "new", "pipe"):
        with pytest.raises(OSError, match=r"symbolic links|No such device"):
            create_output(folder / name)
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match=f"no regular file, and belongs to user {BOB}"):
        create_output(folder / "pipe")
    os.close(reader)
    assert kept.read_text() == "kept"
    assert not kept.with_name("kept-new").exists()
