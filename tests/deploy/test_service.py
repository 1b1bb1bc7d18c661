"""The unit as a service of a systemd that boots for the test, in namespaces, with the agent of this tree.

It sees /usr of this machine, read-only like /proc/sys: a systemd that could would set the kernel's
parameters, for this machine too. Only root can boot one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.agent.process import until
from support.deploy.chart import DEPLOY, DROP_INS, UNIT, directives
from support.paths import ROOT
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


_SYSTEMD = Path("/usr/lib/systemd/systemd")
_PYTHON, _PACKAGES, _TREE = "/opt/python", "/opt/packages", "/opt/tree"
"""Where Python, the packages and this tree are: the unit hides /root and /home, and has a /tmp of its own."""
_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PROGRAM = "opt/rankwatch/bin/rankwatch"
_JOIN = """
mount --make-rprivate /
mount -t cgroup2 cgroup "$root"
mkdir "$root/$cgroup"
echo 0 > "$root/$cgroup/cgroup.procs"
umount "$root"
exec unshare --cgroup sh -ec "$setup"
"""
"""Systemd takes the cgroup in which it starts for the whole tree: this one is removed afterwards."""
_LEAVE = """
mount -t cgroup2 cgroup "$root"
for try in $(seq 100); do
  find "$root/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
  sleep 0.1  # its processes are killed, but not gone yet
done
umount "$root"
"""
_SETUP = """
mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir dev etc opt proc run srv sys tmp usr var
mount --bind /usr usr
mount -o remount,bind,ro usr
for each in bin lib lib64 sbin; do [ ! -L /$each ] || ln -s usr/$each $each; done
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup sys/fs/cgroup
for each in run dev; do mount -t tmpfs -o mode=755 tmpfs $each; done
chmod 1777 tmp
for each in null zero full random urandom tty kmsg; do
  touch dev/$each
  mount --bind /dev/$each dev/$each
done
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
cp /etc/ld.so.cache etc/
cp -r "$files/." .
echo "$mounts" | while read -r new old; do
  mkdir --parents ".$new"
  mount --bind "$old" ".$new"
  mount -o remount,bind,ro ".$new"
done
ip link set lo up
denied=-sys_time,-sys_module,-sys_rawio,-mknod,-audit_control
exec setpriv --bounding-set=$denied chroot . $systemd --log-target=journal --unit=multi-user.target
"""


class Machine(NamedTuple):
    """A systemd that runs. pid: its process here."""

    pid: int

    def run(self, *command: str) -> str:
        """What a command prints that root runs on the machine, whatever its exit status."""
        enter = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd=/"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def shell(self, script: str) -> str:
        """As `run`, for a shell script."""
        return self.run("/bin/sh", "-ec", script)

    def python(self, user: int, code: str) -> None:
        """Run Python code as a user to its end. It finds this tree."""
        environ = "set -a; . /etc/python.env; umask 077; exec"
        rights = f"setpriv --reuid {user} --regid {user} --clear-groups"
        self.shell(f"{environ} {rights} /opt/rankwatch/bin/python -c {shlex.quote(code)}")

    def start_agent(self) -> None:
        """Start the agent, again if it runs, and wait until it serves."""
        self.run("systemctl", "restart", UNIT.name)
        state = self.run("systemctl", "is-active", UNIT.name)
        assert state == "active", self.journal()
        until(lambda: "collector_state" in self.metrics(), "the agent serves")

    def metrics(self) -> str:
        """The agent's page; empty as long as there is none."""
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9477/metrics').read().decode())"
        return self.run("/opt/rankwatch/bin/python", "-c", code)

    def journal(self) -> str:
        """What the unit has logged last."""
        return self.run("journalctl", "--unit", UNIT.name, "--output", "cat", "--lines", "20")

    def agent(self, name: str) -> str:
        """A file below /proc/PID of the agent."""
        pid = self.run("systemctl", "show", UNIT.name, "--property", "MainPID", "--value")
        return self.run("cat", f"/proc/{pid}/{name}")


@contextlib.contextmanager
def machine(folder: Path, files: dict[str, str]) -> Iterator[Machine]:
    """Boot one that has these files (path -> content) besides those of the agent; ended at the end."""
    missing = [each for each in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(each) is None]
    if os.geteuid() != 0 or missing or not _SYSTEMD.exists():
        pytest.skip("only root can boot a machine, with systemd, unshare, nsenter, setpriv and ip")
    for path, content in {**_files(), **files}.items():
        (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / path).write_text(content)
    (folder / "files" / _PROGRAM).chmod(0o755)
    (folder / "files" / _PROGRAM).with_name("python").symlink_to(f"{_PYTHON}/bin/{_NAME}")
    (folder / "root").mkdir()
    mounts = {_PYTHON: sys.base_prefix, _PACKAGES: sys.prefix, _TREE: ROOT}
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "container": "other",
        "root": str(folder / "root"),
        "files": str(folder / "files"),
        "mounts": "\n".join(f"{new} {old}" for new, old in mounts.items()),
        "systemd": str(_SYSTEMD),
        "cgroup": f"rankwatch-machine-{os.getpid()}",
        "setup": _SETUP,
    }
    namespaces = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net")
    with (folder / "log").open("w") as log:
        command = ["unshare", *namespaces, "sh", "-ec", _JOIN]
        booting = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            yield Machine(_booted(booting, folder / "log"))
        finally:
            booting.kill()
            booting.wait()
            subprocess.run(["unshare", "--mount", "sh", "-ec", _LEAVE], env=environ, check=False)


def _booted(booting: subprocess.Popen[bytes], log: Path) -> int:
    """The process of systemd, once it has booted. Skips the test where there can be no such namespaces."""
    children = Path(f"/proc/{booting.pid}/task/{booting.pid}/children")

    def runs() -> bool:
        if booting.poll() is not None:
            pytest.skip(f"no machine can be booted here: {log.read_text()[-300:]}")
        pids = children.read_text().split()
        return bool(pids) and Machine(int(pids[0])).run("systemctl", "is-system-running") in (
            "running",
            "degraded",
        )

    until(runs, "systemd has booted")
    return int(children.read_text().split()[0])


def _files() -> dict[str, str]:
    """The unit, its settings, and a Python that finds this tree where the unit looks for one."""
    moved = {sys.prefix: _PACKAGES, str(ROOT): _TREE}
    places = (
        each.replace(old, new, 1) for each in sys.path for old, new in moved.items() if each.startswith(old)
    )
    return {
        "etc/passwd": "root:x:0:0:root:/:/bin/sh\n",
        "etc/group": "root:x:0:\n",
        "etc/nsswitch.conf": "passwd: files systemd\ngroup: files systemd\n",
        "etc/machine-id": "",
        "etc/rankwatch/agent.toml": (DEPLOY / "agent.toml").read_text(),
        f"etc/systemd/system/{UNIT.name}": UNIT.read_text(),
        "etc/python.env": f"LD_LIBRARY_PATH={_PYTHON}/lib\nPYTHONPATH={':'.join(places)}\n",
        f"etc/systemd/system/{UNIT.name}.d/python.conf": "[Service]\nEnvironmentFile=/etc/python.env\n",
        _PROGRAM: '#!/bin/sh\nexec /opt/rankwatch/bin/python -m rankwatch_cli "$@"\n',
    }
