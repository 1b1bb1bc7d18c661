"""Children that read users' data: what they run, and what they can do once they are confined."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch.processes import python
from rankwatch.untrusted.children import Limits, Owner, confined, owner_of
from support.processes.users import ALICE, BOB, node_directory

__all__ = ["node_directory"]

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
