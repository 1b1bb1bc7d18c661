"""Programs that see a file system of their own, as in a container. Only root can start them.

One is a file server that never answers: whoever opens, lists or asks for the status of anything on it hangs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_READ_ONLY = """
for each in /tmp /var/tmp; do mount --bind $each $each && mount -o remount,bind,ro $each; done
mount -o remount,bind,ro /
cd / && exec "$@"
"""
_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'


def run_with_tmpfs(
    directory: Path, options: str, code: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with a tmpfs mounted at the directory, which is that of its black boxes, too.

    options: of mount(8), such as `size=64m,mode=1777`.
    """
    variables = {"RANKWATCH_DIR": str(directory), **variables}
    return _run(("sh", "-c", _MOUNT, "sh", options, str(directory)), code, variables)


def run_with_read_only_root(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where no directory for temporary files can be written, as in the agent's container."""
    return _run(("sh", "-ec", _READ_ONLY, "sh"), code, {}, *arguments)


def _run(
    mounts: tuple[str, ...], code: str, variables: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--mount", *mounts]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    return subprocess.run(
        [*command, sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


_DEAD_SERVER = """
import ctypes, os, sys
from pathlib import Path
directory = Path(sys.argv[1])
dead = directory / "dead"
dead.mkdir()
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
if ctypes.CDLL(None).mount(b"dead", bytes(dead), b"fuse", 0, options):
    print("cannot mount")
    raise SystemExit
"""
_SECONDS = 60.0
"""After which a process hangs. It takes two."""


def run_beside_dead_server(directory: Path, code: str) -> str:
    """Run `code`, which finds a server at `dead`, in `directory`; returns what it prints.

    Nobody else sees the mount. TimeoutExpired if the code hangs. It is killed then, which ends the server.
    """
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root can mount, and it takes /dev/fuse")
    command = ["unshare", "--mount", sys.executable, "-c", _DEAD_SERVER + code, str(directory)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    if ended.stdout == "cannot mount\n":
        pytest.skip("this container may not mount")
    return ended.stdout
