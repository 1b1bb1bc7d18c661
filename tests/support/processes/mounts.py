"""Programs that see a file system of their own, as in a container. Only root can start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
libc = ctypes.CDLL(None, use_errno=True)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % os.open("/dev/fuse", os.O_RDWR)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
sys.stdin.readline()
libc.umount2(sys.argv[1].encode(), 2)  # MNT_DETACH
"""


@contextmanager
def dead_file_server(directory: Path) -> Iterator[None]:
    """A file system at the directory whose server never answers. In the end, who waits gets an error."""
    command = [sys.executable, "-c", _DEAD_SERVER, str(directory)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None and server.stdin is not None
        if server.stdout.readline() != "mounted\n":
            pytest.skip("this machine does not allow mounts of FUSE")
        try:
            yield
        finally:
            server.stdin.write("\n")
            server.stdin.flush()
            server.wait(30)
