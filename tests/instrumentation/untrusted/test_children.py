"""Children that read users' data: what they run, what they can do once they are confined, and the files at
paths that a user chose, which they read with the rights of that user, without waiting for any of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from rankwatch.processes import python
from rankwatch.untrusted.children import Limits, Owner, confined, owner_of
from rankwatch.untrusted.chosen_paths import UNANSWERED, Answer, PathReader, Wanted, read
from support.processes.users import ALICE, BOB

pytestmark = pytest.mark.process

LIMITS = Limits(seconds=60.0, cpu_seconds=60, memory_bytes=1 << 30, output_bytes=1000)
PROGRAM = """
import json, os, pathlib, socket
def main(as_owner):
    found = {"as_owner": as_owner, "ids": [os.getresuid(), os.getresgid(), os.getgroups()]}
    status = open("/proc/self/status").read()
    found["capabilities"] = {line.split()[1] for line in status.splitlines() if line[:6] in KINDS}.pop()
    for name, do in TRIED.items():
        try:
            do()
        except OSError as error:
            found[name] = type(error).__name__
        else:
            found[name] = "done"
    print(json.dumps(found))
KINDS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
TRIED = {
    "internet": lambda: socket.socket(),
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "root's file": lambda: open("/etc/shadow").close(),
    "large file": lambda: pathlib.Path(os.environ["LARGE"]).write_bytes(bytes(2000)),
}
"""


def run(folder: Path, owner: Owner | None, prefix: tuple[str, ...] = ()) -> dict[str, object]:
    """What the program finds once it is confined, in a folder that only root and the owner may read."""
    (folder / "confined_program.py").write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(folder), "LARGE": str(folder / "large")}
    command = [*prefix, *confined("confined_program", limits=LIMITS, owner=owner)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_rights_of_the_owner(node_directory: Path) -> None:
    """A child of root has the ids of the owner alone, no capability and no network; its module was imported
    from a folder that the owner may not read."""
    code = node_directory / "code"
    code.mkdir(mode=0o700)
    found = run(code, Owner(ALICE, BOB, (ALICE, BOB)))
    assert found == {
        "as_owner": True,
        "ids": [[ALICE] * 3, [BOB] * 3, [ALICE, BOB]],
        "capabilities": "0000000000000000",
        "internet": "PermissionError",
        "unix socket": "PermissionError",
        "root's file": "PermissionError",
        "large file": "PermissionError",
    }


def test_groups_that_nobody_knows(node_directory: Path) -> None:
    """A user of whom neither a process nor the node tells the groups gets the one that owns nothing."""
    assert run(node_directory, Owner(ALICE))["ids"] == [[ALICE] * 3, [65534] * 3, []]


@pytest.mark.parametrize(("capabilities", "as_owner"), [("-all", False), ("+setuid,+setgid", True)])
def test_service_without_root(node_directory: Path, capabilities: str, as_owner: bool) -> None:
    """A service of its own user becomes the owner if it may, and else says that it has not."""
    prefix = ("setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--clear-groups")
    prefix += (f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}")
    node_directory.chmod(0o755)
    found = run(node_directory, Owner(ALICE, ALICE), prefix)
    assert found["as_owner"] is as_owner
    assert found["ids"] == [[ALICE if as_owner else BOB] * 3] * 2 + [[]]
    assert found["capabilities"] == "0000000000000000"


def test_without_owner(tmp_path: Path) -> None:
    """It keeps its user, and has neither network nor room for a file beyond its limit."""
    found = run(tmp_path, None)
    expected = {"as_owner": False, "internet": "PermissionError", "large file": "OSError"}
    assert {**found, **expected, "capabilities": "0" * 16} == found


def test_deadline(tmp_path: Path) -> None:
    """A child ends itself: its parent may have no right to end a process of another user."""
    (tmp_path / "sleeping_program.py").write_text("import time\ndef main(as_owner): time.sleep(600)\n")
    command = confined("sleeping_program", limits=LIMITS._replace(seconds=0.2))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False)
    assert done.returncode == -14


def test_working_directory(tmp_path: Path) -> None:
    """Nothing of the directory in which an operator stands is run, whatever it is called."""
    for name in ("queue", "json", "struct", "msgspec", "rankwatch"):
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/ran', 'w')\n")
    (tmp_path / "_dump_0").write_bytes(b"{}")
    rankwatch = Path(sys.executable).with_name("rankwatch")
    hang = [str(rankwatch), "diagnose", "hang", "."]
    for command in (hang, python("-c", "import queue"), confined("json", limits=LIMITS)):
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert not (tmp_path / "ran").exists(), command


def test_groups_of_the_owner() -> None:
    """They are those of a process of the user; that of another user counts for nothing."""
    here = owner_of(os.geteuid(), os.getpid())
    assert here == (os.geteuid(), os.getgid(), tuple(os.getgroups()))
    assert owner_of(ALICE, os.getpid()) == owner_of(ALICE) == Owner(ALICE)


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
