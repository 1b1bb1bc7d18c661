"""Programs of unprivileged users of this machine, as root alone can start them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.paths import ROOT

ALICE, BOB, CAROL = 64001, 64002, 64003
"""User ids that no user of the machine has."""
_PRELUDE = """
import ctypes, encodings.idna, fcntl, mmap, os, pathlib, signal, socket, struct, sys, threading, time, types
from rankwatch.blackbox import layout
uid = int(sys.argv[1])
directory = pathlib.Path(sys.argv[2])
arguments = sys.argv[3:]
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.umask(0o022)

def box(run, rank, *, capacity=16384, folder=None, age=0.0):
    "A valid box of a rank that no process holds, begun `age` seconds ago: sparse, with a header alone."
    size = layout.RING_OFFSET + capacity * layout.RECORD_SIZE
    header = layout.FIXED.pack(
        layout.MAGIC, layout.VERSION, layout.HEADER_SIZE, layout.RECORD_SIZE, layout.NAME_COUNT, capacity,
        layout.NOW_OFFSET, layout.NAMES_OFFSET, layout.RING_OFFSET, size, rank, 1 << 20, 0, os.getpid(),
        time.monotonic() - age, time.time() - age, float("nan"), run.encode(), b"host", 0,
    )
    folder = directory / (folder or run)
    folder.mkdir(exist_ok=True)
    path = folder / f"{rank}{layout.SUFFIX}"
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(size)
    return path

def done():
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def node_directory() -> Iterator[Path]:
    """A directory of black boxes that every user of the node can reach; only root can be other users.

    Not below pytest's own directory, which is for one user, and whose mode tests that run side by side share.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    with tempfile.TemporaryDirectory(prefix="rankwatch-") as folder:
        Path(folder).chmod(0o711)
        shared = Path(folder) / "boxes"
        shared.mkdir()
        shared.chmod(0o1777)
        yield shared


@contextmanager
def program_of(user: int, directory: Path, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `code` as this user up to its first `done()`; killed at the end."""
    command = [sys.executable, "-c", _PRELUDE + code, str(user), str(directory), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
            yield process
        finally:
            process.kill()


def run_as(user: int, directory: Path, code: str, *arguments: str) -> None:
    """Run `code` as this user to its end."""
    with program_of(user, directory, code + "\ndone()", *arguments):
        pass


def become(user: int) -> str:
    """Code for `support.training.ranks.rank(before=...)` that makes the rank one of this user."""
    return f"os.setgroups([]); os.setgid({user}); os.setuid({user}); os.umask(0o022)"


def as_user(user: int, capabilities: Iterable[str] = ()) -> tuple[str, ...]:
    """The beginning of a command that runs another one as this user, which may be root, with these
    capabilities and no others. Its children keep them, as those of a systemd service do.

    Python may lie where only root may look, such as in /root: the command sees these folders elsewhere open.
    """
    names = ",".join(["-all", *(f"+{each.lower().removeprefix('cap_')}" for each in capabilities)])
    limits = [f"--{kind}={names}" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
    ids = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
    prepare = f'{_open_to_all(Path(sys.base_prefix), Path(sys.prefix), ROOT)}\nexec setpriv "$@"'
    return ("unshare", "--mount", "sh", "-ec", prepare, "setpriv", *ids, *limits, "--no-new-privs")


def _open_to_all(*folders: Path) -> str:
    """A shell script that mounts, over each folder that others may not enter, one that they may, with what is
    needed of it."""
    closed: dict[Path, list[Path]] = {}
    for folder in folders:
        above = next((each for each in reversed(folder.parents) if not each.stat().st_mode & 1), None)
        if above is not None:
            closed.setdefault(above, []).append(folder)
    lines = ["umask 022"]
    for above, needed in closed.items():
        lines += ["held=$(mktemp -d)", 'mount -t tmpfs tmpfs "$held"']
        lines += [
            f'mkdir "$held/{at}"; mount --bind {shlex.quote(str(each))} "$held/{at}"'
            for at, each in enumerate(needed)
        ]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(above))}")
        for at, each in enumerate(needed):
            place = shlex.quote(str(each))
            lines.append(f'mkdir --parents {place}; mount --bind "$held/{at}" {place}')
        lines.append('umount --lazy "$held"; rmdir "$held"')
    return "\n".join(lines)
