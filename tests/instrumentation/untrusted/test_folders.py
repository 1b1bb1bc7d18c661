"""Folders by descriptors, and files of a command of root: nothing that is put in the way leads elsewhere."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from rankwatch.untrusted import paths
from rankwatch.untrusted.folders import Folder, NotOwnedError, NotRegularError
from rankwatch.untrusted.paths import create_output
from rankwatch.untrusted.peers import connect, lock_holder
from rankwatch_cli.output import write_file
from support.processes.users import ALICE, BOB, program_of, run_as


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder with a file, a folder with a file, links to the inside and to the outside, and a FIFO."""
    here = tmp_path / "folder"
    (here / "inner").mkdir(parents=True)
    (here / "file").write_bytes(b"here")
    (here / "inner" / "file").write_bytes(b"inner")
    (tmp_path / "secret").write_bytes(b"secret")
    (here / "inside").symlink_to("inner/file")
    (here / "outside").symlink_to("../secret")
    (here / "absolute").symlink_to(here / "file")
    (here / "elsewhere").symlink_to("..")
    os.mkfifo(here / "fifo")
    with Folder.open(here) as opened:
        yield opened


def content(file: int) -> bytes:
    with open(file, "rb") as opened:
        return opened.read()


def test_names(folder: Folder) -> None:
    """A name is one name, and what has it must be a regular file: no link, FIFO or folder."""
    assert folder.read("file", most_bytes=4) == b"here"
    for name in ("inside", "outside", "fifo", "inner", "elsewhere"):
        with pytest.raises(NotRegularError):
            folder.open_file(name)
    for name in ("", ".", "..", "../secret", "inner/file", "/etc/passwd", "a\0b"):
        with pytest.raises(OSError, match="name of a file"):
            folder.open_file(name)
    with pytest.raises(OSError) as raised:
        folder.read("file", most_bytes=3)
    assert raised.value.errno == errno.EFBIG


@pytest.mark.parametrize("kernel", ["with openat2", "without"])
def test_beneath(folder: Folder, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of several names stay below the folder, by links too. A kernel without openat2 follows none."""
    if kernel == "without":
        monkeypatch.setattr(paths, "_openat2", Mock(side_effect=NotImplementedError))
    assert content(folder.open_beneath("inner/file")) == b"inner"
    for path in ("outside", "absolute", "elsewhere/secret", "../secret", "/etc/passwd", "", "inner/../file"):
        with pytest.raises(OSError):
            folder.open_beneath(path)
    for path in ("fifo", "inner"):
        with pytest.raises(NotRegularError):
            folder.open_beneath(path)
    if kernel == "without":
        with pytest.raises(OSError, match="link"):
            folder.open_beneath("inside")
    else:
        assert content(folder.open_beneath("inside")) == b"inner"
    with folder.folder_beneath("inner") as inner:
        assert sorted(inner.names()) == ["file"]


def test_exchanged_for_a_link(folder: Folder, tmp_path: Path) -> None:
    """What is done in an open folder stays in it, whatever its path leads to by now."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"victim")
    (tmp_path / "folder").rename(tmp_path / "moved")
    (tmp_path / "folder").symlink_to(victim)
    assert folder.remove("file")
    folder.write("new", b"new")
    folder.remove_tree("inner")
    assert [each.name for each in victim.iterdir()] == ["file"]
    assert not (tmp_path / "moved" / "inner").exists()
    with pytest.raises(NotADirectoryError):
        Folder.open(tmp_path / "folder")


def test_link_in_a_tree(folder: Folder, tmp_path: Path) -> None:
    """A link in a tree that is removed is removed itself, and not what it leads to."""
    (tmp_path / "folder" / "inner" / "link").symlink_to(tmp_path)
    folder.remove_tree("inner")
    folder.remove_tree("elsewhere")
    assert (tmp_path / "secret").exists()
    assert "inner" not in folder.names()


def test_write(folder: Folder, tmp_path: Path) -> None:
    """A file takes its place at once. What is in its way, such as a link, is not written to."""
    (tmp_path / "folder" / ".note.new").symlink_to(tmp_path / "secret")
    (tmp_path / "folder" / "note").symlink_to(tmp_path / "secret")
    folder.write("note", b"x" * (3 << 20), lasting=True)
    assert folder.read("note", most_bytes=3 << 20) == b"x" * (3 << 20)
    assert (tmp_path / "secret").read_bytes() == b"secret"
    with pytest.raises(IsADirectoryError):
        folder.write("inner", b"x")
    assert ".inner.new" not in folder.names()


def test_remove_if(folder: Folder) -> None:
    """A file that another has replaced stays."""
    inode = folder.status_of("file").st_ino
    folder.write("file", b"newer")
    assert not folder.remove_if("file", inode)
    assert folder.read("file", most_bytes=100) == b"newer"
    assert folder.remove_if("file", folder.status_of("file").st_ino)
    assert "file" not in folder.names()


@pytest.mark.process
def test_tree_of_another_user(node_directory: Path) -> None:
    """Root removes what the owner of a folder could remove, and nothing in folders of others inside it."""
    run = node_directory / "run"
    for path, user in ((run, ALICE), (run / "own", ALICE), (run / "own" / "deep", BOB), (run / "bob", BOB)):
        path.mkdir()
        (path / "file").write_text("")
        os.chown(path, user, user)
    with Folder.open(run) as folder:
        folder.remove_tree("own")
        folder.remove_tree("bob")
    assert (run / "own" / "deep" / "file").exists()
    assert (run / "bob" / "file").exists()
    assert not (run / "own" / "file").exists()


@pytest.mark.process
def test_owner_of_a_file(node_directory: Path) -> None:
    """The owner is looked up on what is open."""
    (node_directory / "file").write_text("alice")
    os.chown(node_directory / "file", ALICE, ALICE)
    with Folder.open(node_directory) as folder:
        assert folder.read("file", most_bytes=10, owner=ALICE) == b"alice"
        with pytest.raises(NotOwnedError, match=f"belongs to user {ALICE}, not to user {BOB}"):
            folder.open_file("file", owner=BOB)


@pytest.mark.process
@pytest.mark.parametrize(
    ("user", "mode", "reason"),
    [
        (0, 0o1777, ""),
        (0, 0o755, ""),
        (999, 0o1777, ""),
        (0, 0o777, "no sticky bit (mode 777)"),
        (0, 0o775, "no sticky bit (mode 775)"),
        (ALICE, 0o1777, f"it belongs to user {ALICE}"),
        (ALICE, 0o700, f"it belongs to user {ALICE}"),
    ],
)
def test_distrust(node_directory: Path, user: int, mode: int, reason: str) -> None:
    """Who owns a folder, or may write to one without a sticky bit, can exchange what others have in it."""
    os.chown(node_directory, user, user)
    node_directory.chmod(mode)
    with Folder.open(node_directory) as folder:
        assert folder.distrust().endswith(reason)
        assert bool(folder.distrust()) == bool(reason)


@pytest.mark.process
def test_lock_holder(folder: Folder) -> None:
    """The process that holds a lock is known by its id; a lock of this process is none to itself."""
    file = folder.open_file("file")
    assert lock_holder(file) is None
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX)\n"
    code += "print(flush=True); input()"
    command = ["python3", "-c", code, str(folder.path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lock_holder(file) == holder.pid
        holder.kill()
    os.close(file)


SERVE = """
path = directory / arguments[0]
server = socket.socket(socket.AF_UNIX)
server.bind(str(path))
path.chmod(0o777)
server.listen()
done()
"""


@pytest.mark.process
def test_sockets(node_directory: Path) -> None:
    """A socket must belong to the user, and be answered by them: a link or another's socket is refused."""
    with (
        program_of(ALICE, node_directory, SERVE, "alice"),
        program_of(BOB, node_directory, SERVE, "bob"),
        Folder.open(node_directory) as folder,
    ):
        connect(folder, "alice", ALICE, 10.0).close()
        with pytest.raises(NotOwnedError):
            connect(folder, "bob", ALICE, 10.0)
        (node_directory / "link").symlink_to("bob")
        with pytest.raises(OSError, match="not a socket"):
            connect(folder, "link", ALICE, 10.0)
        # A socket of Alice's that Bob answers: he was given its file, or holds its descriptor.
        os.chown(node_directory / "bob", ALICE, ALICE)
        with pytest.raises(NotOwnedError):
            connect(folder, "bob", ALICE, 10.0)


def test_long_path(tmp_path: Path) -> None:
    """The address of a socket holds 107 characters; a path may have more."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with Folder.open(deep) as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder.fileno()}/s")
        server.listen()
        assert stat.S_ISSOCK(folder.status_of("s").st_mode)
        connect(folder, "s", os.geteuid(), 10.0).close()


def test_tree_without_end(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is removed up to a number of files, so that nobody waits for millions of them."""
    monkeypatch.setattr("rankwatch.untrusted.folders._MOST_REMOVED", 10)
    with folder.folder("inner") as inner:
        for number in range(30):
            inner.write(str(number), b"")
    folder.remove_tree("inner")
    assert 20 <= len(list((folder.path / "inner").iterdir())) < 30


@pytest.mark.process
def test_killed_while_it_removed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has put aside goes with the next removal."""
    monkeypatch.setattr(Folder, "status_of", lambda *_: os._exit(0))
    child = os.fork()
    if not child:
        folder.remove_if("file", 0)
    os.waitpid(child, 0)
    monkeypatch.undo()
    assert any(".removed" in each for each in folder.names())
    folder.remove_asides()
    assert not any(".removed" in each for each in folder.names())


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
