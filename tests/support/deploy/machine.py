"""A machine of its own for the unit: a systemd that boots in namespaces, with the agent of this tree.

It sees /usr of this machine, read-only like /proc/sys: a systemd that could would set the kernel's
parameters, for this machine too. Only root can boot one.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.agent.process import until
from support.deploy.chart import DEPLOY
from support.deploy.unit import UNIT
from support.paths import ROOT

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
