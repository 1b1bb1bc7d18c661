"""Programs that see a file system of their own, as in a container. Only root can start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MOUNT = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'


def run_with_tmpfs(
    directory: Path, options: str, code: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with a tmpfs mounted at the directory, which is that of its black boxes, too.

    options: of mount(8), such as `size=64m,mode=1777`.
    """
    command = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", options, str(directory)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounts")
    return subprocess.run(
        [*command, sys.executable, "-c", code],
        env={**os.environ, "RANKWATCH_DIR": str(directory), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
