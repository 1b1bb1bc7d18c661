"""Network namespaces with a virtual cable, a slow loopback or a switch, where the tests may create them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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


class Switch(NamedTuple):
    """Namespaces that reach each other through the bridge of one more, the hub."""

    hub: Namespace
    nodes: Mapping[str, Namespace]
    """By name of the node; each has the interface `eth0`."""

    def address(self, node: str) -> str:
        """The address of a node."""
        return f"{_NETWORK}.{list(self.nodes).index(node) + 1}"

    def set_link(self, node: str, state: str) -> None:
        """Pulls the cable of a node (`down`), or plugs it in again (`up`)."""
        _must("ip", "-n", self.hub.name, "link", "set", _port(node), state)

    @contextlib.contextmanager
    def limited_link(self, node: str, bits_per_second: int) -> Iterator[None]:
        """Limits the rate of a node's cable in both directions; what does not fit into its short queue is
        lost. Skips the test where that is impossible.
        """
        ends = ((self.hub.name, _port(node)), (self.nodes[node].name, _ETHERNET))
        try:
            for name, device in ends:
                limited = _limit(name, bits_per_second, device, _SHORT_QUEUE)
                if limited.returncode != 0:
                    pytest.skip(f"no interface can be limited here: {limited.stderr.strip()}")
            yield
        finally:
            for name, device in ends:
                _run("tc", "-n", name, "qdisc", "delete", "dev", device, "root")

    @contextlib.contextmanager
    def cut_from_hub(self, node: str) -> Iterator[None]:
        """The node does not answer the hub for the block. It reaches all other nodes as before."""
        route = ("route", "add", "blackhole", f"{_HUB}/32")
        _must("ip", "-n", self.nodes[node].name, *route)
        try:
            yield
        finally:
            _run("ip", "-n", self.nodes[node].name, "route", "delete", *route[2:])


_SHORT_QUEUE = ("limit", str(8 * _MTU_BYTES))
_ETHERNET = "eth0"
_NETWORK = "10.77.0"
"""Addresses inside the namespaces. The machine itself has none of them."""
_HUB = f"{_NETWORK}.254"


@contextlib.contextmanager
def switch(nodes: Sequence[str]) -> Iterator[Switch]:
    """Creates a namespace for each node and one for the hub, joined by a bridge."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(namespace("hub"))
        made = Switch(hub, {each: stack.enter_context(namespace(each)) for each in nodes})
        _make_link(hub, "switch", "type", "bridge")
        _bring_up(hub, "switch", _HUB)
        for node, inside in made.nodes.items():
            peer = ("peer", "name", _ETHERNET, "netns", inside.name)
            _make_link(hub, _port(node), "type", "veth", *peer)
            _must("ip", "-n", hub.name, "link", "set", _port(node), "master", "switch", "up")
            _bring_up(inside, _ETHERNET, made.address(node))
        yield made


@contextlib.contextmanager
def entered(inside: Namespace) -> Iterator[None]:
    """This thread, and whatever it starts, is inside for the block."""
    with (
        Path("/proc/thread-self/ns/net").open() as home,
        Path("/run/netns", inside.name).open() as there,
    ):
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


_CLONE_NEWNET = 0x40000000


def _enter(descriptor: int) -> None:
    """`os.setns`, which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make_link(inside: Namespace, name: str, *kind: str) -> None:
    made = _ip("-n", inside.name, "link", "add", name, *kind)
    if made.returncode != 0:
        pytest.skip(f"no virtual interface can be made here: {made.stderr.strip()}")


def _port(node: str) -> str:
    return f"to-{node}"


def _bring_up(inside: Namespace, device: str, address: str) -> None:
    _must("ip", "-n", inside.name, "link", "set", "lo", "up")
    _must("ip", "-n", inside.name, "address", "add", f"{address}/24", "dev", device)
    _must("ip", "-n", inside.name, "link", "set", device, "up")


def _limit(
    name: str, bits_per_second: int, device: str = "lo", queue: tuple[str, str] = ("latency", "10s")
) -> subprocess.CompletedProcess[str]:
    rate = ("rate", str(bits_per_second), "burst", str(16 * _MTU_BYTES), *queue)
    return _run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", *rate)


def _must(*command: str) -> None:
    done = _run(*command)
    assert done.returncode == 0, done.stderr


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run("ip", *arguments)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False)
