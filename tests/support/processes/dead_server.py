"""A file server that never answers: whoever opens, lists or asks for the status of anything on it hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = """
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
    command = ["unshare", "--mount", sys.executable, "-c", _MOUNT + code, str(directory)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    if ended.stdout == "cannot mount\n":
        pytest.skip("this container may not mount")
    return ended.stdout
