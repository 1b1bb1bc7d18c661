"""Programs that see a file system of their own, as in a container. Only root can start them."""

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
