"""Network namespaces with a virtual cable or a slow loopback, where the tests may create them."""

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
_MTU_BYTES = 1500
_UNLIMITED = 10_000_000_000
"""Bits per second, far more than a loopback interface passes."""


class Namespace(NamedTuple):
    """A network namespace; a process inside sees no interface of this machine."""

    name: str

    @property
    def command(self) -> tuple[str, ...]:
        """Returns the prefix of a command that runs inside."""
        return ("ip", "netns", "exec", self.name)

    def python(self, code: str) -> str:
        """Runs Python code inside, with the namespace's own /sys. Returns what it prints."""
        command = [*self.command, sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def limit_loopback(self, bits_per_second: int) -> None:
        """Limits the rate of the loopback interface. Faster packets wait."""
        done = _limit(self.name, bits_per_second)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def namespace(name: str) -> Iterator[Namespace]:
    """Creates a namespace without interfaces for the block. Skips the test where that is impossible."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed: it comes with Debian's package iproute2")
    unique = f"rankwatch-{name}-{os.getpid()}"
    made = _ip("netns", "add", unique)
    if made.returncode != 0:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        yield Namespace(unique)
    finally:
        _ip("netns", "delete", unique)


@contextlib.contextmanager
def namespace_with_cable(name: str) -> Iterator[Namespace]:
    """Creates a namespace in which `v0` and `v1` are the ends of one cable, both down."""
    with namespace(name) as made:
        queues = ("numrxqueues", "4", "numtxqueues", "4")
        ends = ("v0", *queues, "type", "veth", "peer", "name", "v1", *queues)
        cable = _ip("-n", made.name, "link", "add", *ends)
        if cable.returncode != 0:
            pytest.skip(f"no virtual interface can be made here: {cable.stderr.strip()}")
        yield made


@contextlib.contextmanager
def namespace_with_loopback(name: str) -> Iterator[Namespace]:
    """Creates a namespace whose loopback is up and can be limited, with packets as small as on a wire."""
    with namespace(name) as made:
        up = _ip("-n", made.name, "link", "set", "lo", "mtu", str(_MTU_BYTES), "up")
        assert up.returncode == 0, up.stderr
        limited = _limit(made.name, _UNLIMITED)
        if limited.returncode != 0:
            pytest.skip(f"no interface can be limited here: {limited.stderr.strip()}")
        yield made


def _limit(name: str, bits_per_second: int) -> subprocess.CompletedProcess[str]:
    rate = ("rate", str(bits_per_second), "burst", str(16 * _MTU_BYTES), "latency", "10s")
    return _run("tc", "-n", name, "qdisc", "replace", "dev", "lo", "root", "tbf", *rate)


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run("ip", *arguments)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
