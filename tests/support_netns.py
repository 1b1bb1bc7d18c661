"""A network namespace of its own with a pair of virtual interfaces, where this machine lets us make one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

LONGEST_SECONDS = 60.0


class Namespace(NamedTuple):
    """A namespace in which `v0` and `v1` are the ends of one cable, both down."""

    name: str

    def python(self, code: str) -> str:
        """Run Python code inside, with the namespace's own /sys; what it prints."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def namespace_with_cable(name: str) -> Iterator[Namespace]:
    """Make it, remove it at the end; skips the test where it needs what is not here."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed: it comes with Debian's package iproute2")
    unique = f"rankwatch-{name}-{os.getpid()}"
    made = _ip("netns", "add", unique)
    if made.returncode != 0:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        queues = ("numrxqueues", "4", "numtxqueues", "4")
        cable = _ip("-n", unique, "link", "add", "v0", *queues, "type", "veth", "peer", "name", "v1", *queues)
        if cable.returncode != 0:
            pytest.skip(f"no virtual interface can be made here: {cable.stderr.strip()}")
        yield Namespace(unique)
    finally:
        _ip("netns", "delete", unique)


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
