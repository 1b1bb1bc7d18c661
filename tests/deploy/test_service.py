"""The unit as a service of a systemd that boots for the test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.agent.process import until
from support.deploy.chart import DEPLOY
from support.deploy.machine import Machine, machine
from support.deploy.unit import DROP_INS, UNIT, directives
from support.processes.users import ALICE

pytestmark = pytest.mark.process

RUN = """
import json, os, pathlib, signal, rankwatch, tempfile
error = pathlib.Path(tempfile.mkdtemp(prefix="torchelastic_")) / "error.json"  # as torchrun does
error.write_text(json.dumps({"message": {"message": "ValueError: no such batch", "extraInfo": {}}}))
os.environ["TORCHELASTIC_ERROR_FILE"] = str(error)
run = rankwatch.start(run="job", rank=0, world_size=1)
model = pathlib.Path("/home", "alice", "model.safetensors")
with run.step(), run.checkpoint("save", path=model):
    header = b'{"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    model.write_bytes(content)
note = pathlib.Path("/dev/shm/rankwatch/job/0.checkpoints")
saved = json.loads(note.read_text())
saved["checkpoints"][0]["ended"] -= 60  # the agent gives other ranks ten seconds
note.write_text(json.dumps(saved))
os.kill(os.getpid(), signal.SIGKILL)
"""
SETTINGS = """
checkpoint_bytes_per_second = 1e9
retention_seconds = 15
intervals_seconds = {checkpoints = 0.5}
"""
DIRECTORY = "/dev/shm/rankwatch"
ENTRY = "etc/tmpfiles.d/rankwatch.conf"
SHARED = "root 1777"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the unit, its entry for tmpfiles and no drop-in."""
    entry = (DEPLOY / "tmpfiles.d" / "rankwatch.conf").read_text()
    with machine(tmp_path_factory.mktemp("machine"), {ENTRY: entry}) as booted:
        yield booted


def mode(node: Machine, path: str) -> str:
    """Owner and mode, without following a link."""
    return node.run("stat", "--format=%U %a", path)


def writable(node: Machine) -> dict[str, bool]:
    """The file systems below /dev/shm that the agent sees, and whether it may write to them."""
    lines = (line.split() for line in node.agent("mountinfo").splitlines())
    return {each[4]: "rw" in each[5].split(",") for each in lines if each[4].startswith("/dev/shm")}


def test_fresh_boot(node: Machine) -> None:
    """The directory is there before any user can make it. The agent has no right, and every collector that
    applies works in its sandbox."""
    assert mode(node, DIRECTORY) == SHARED
    node.start_agent()
    status = node.agent("status")
    assert re.search(r"^CapPrm:\t0{16}\nCapEff:\t0{16}\nCapBnd:\t0{16}$", status, re.MULTILINE)
    assert not re.search(r"^Uid:\t0\t", status, re.MULTILINE)
    assert writable(node) == {"/dev/shm": False, DIRECTORY: True}
    assert re.findall(r'collector="(\w+)"[^}]*state="failed"} 1', node.metrics()) == []


def test_missing_directory(node: Machine) -> None:
    """Who has just installed the unit, or removed the directory, gets it with the agent, without a boot."""
    node.run("systemctl", "stop", UNIT.name)
    node.run("rm", "--recursive", DIRECTORY)
    node.start_agent()
    assert mode(node, DIRECTORY) == SHARED
    assert writable(node)[DIRECTORY]


def test_directory_of_a_user(node: Machine) -> None:
    """Its owner could remove what others have in it, so root takes it back."""
    node.run("chown", str(ALICE), DIRECTORY)
    node.start_agent()
    assert mode(node, DIRECTORY) == SHARED


def test_link_of_a_user(node: Machine) -> None:
    """Root opens nothing to all users that a user has put a link to. The agent runs without the directory."""
    node.shell(f"rmdir {DIRECTORY}; mkdir --mode=755 /srv/private; ln -s /srv/private {DIRECTORY}")
    node.start_agent()
    assert mode(node, "/srv/private") == "root 755"
    node.run("rm", DIRECTORY)


def test_without_the_entry(node: Machine) -> None:
    """A node that got the new unit alone has its agent."""
    node.run("mv", f"/{ENTRY}", "/etc/kept")
    node.run("rm", "--recursive", "--force", DIRECTORY)
    node.start_agent()
    node.run("mv", "/etc/kept", f"/{ENTRY}")


def test_all_drop_ins(node: Machine) -> None:
    """Their capabilities add up, and in the sandbox of the unit they do what they are for: children read a
    checkpoint in the home of its user and torchrun's error file in /tmp with the rights of that user, and the
    box of an ended run is removed."""
    node.shell(f"mkdir --parents /home; cd /home; mkdir --mode=700 alice; chown {ALICE}:{ALICE} alice")
    node.shell(f"cat >> /etc/rankwatch/agent.toml <<'END'\n{SETTINGS}END")
    for each in DROP_INS:
        place = f"/etc/systemd/system/{UNIT.name}.d/{each.name}"
        node.shell(f"cat > {place} <<'END'\n{each.read_text()}END")
    node.run("systemctl", "daemon-reload")
    node.start_agent()
    node.python(ALICE, RUN)
    wanted = {
        name for each in DROP_INS for name in directives(each)["AmbientCapabilities"][0].lower().split()
    }
    held = re.search(r"^CapEff:\t(\w+)$", node.agent("status"), re.MULTILINE)
    assert held is not None
    _, _, names = node.run("capsh", f"--decode={held[1]}").partition("=")
    assert set(names.split(",")) == wanted
    good = re.compile(r'^rankwatch_checkpoint_verifications_total{.*outcome="good"} 1', re.MULTILINE)
    told = re.compile(r'^rankwatch_rank_failures_total{.*exception="ValueError".*} 1', re.MULTILINE)
    until(lambda: good.search(node.metrics()) is not None, "it is verified")
    until(lambda: told.search(node.metrics()) is not None, "it is known why the rank has ended")
    until(lambda: node.run("ls", DIRECTORY) == "", "its box is removed")
