"""Small real objects for tests of the agent: collectors, clocks, HTTP requests, a running agent."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Series

DEADLINE_SECONDS = 60.0
"""Longest wait for anything: long enough for a busy machine, and never reached when all is well."""


def until(condition: Callable[[], bool], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until the condition holds. Fail with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.03)  # a scrape costs the agent some milliseconds


@dataclass
class ManualClock:
    """A clock that only the test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeCollector:
    """A collector that runs `act`, and counts its runs."""

    name: str = "fake"
    interval_seconds: float = 3600.0
    deadline_seconds: float = 60.0
    act: Callable[[], Collection] = Collection
    runs: int = 0

    def collect(self) -> Collection:
        self.runs += 1
        return self.act()


@dataclass
class HungCollector:
    """A collector whose run lasts until `release` is set, like a read from a dead file server."""

    name: str = "hung"
    interval_seconds: float = 3600.0
    deadline_seconds: float = 60.0
    entered: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def collect(self) -> Collection:
        self.entered.set()
        self.release.wait()
        return load(2.0)


def load(value: float) -> Collection:
    """A collection of one gauge."""
    return Collection([Series(metric("rankwatch_host_cpus"), (), value)])


def values(collections: Sequence[Collection]) -> dict[tuple[str, ...], float]:
    """(metric name, label values...) -> value over all collections."""
    return {
        (series.metric.name, *series.labels): series.value
        for collection in collections
        for series in collection.series
    }


class Reply(NamedTuple):
    """The response of an HTTP server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(address: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> Reply:
    """One request to HOST:PORT."""
    connection = http.client.HTTPConnection(address, timeout=DEADLINE_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())


def page(address: str) -> str:
    """The /metrics of an agent."""
    return fetch(address, "/metrics").body.decode()


class AgentProcess(NamedTuple):
    """A running `rankwatch agent` and the address it serves."""

    process: subprocess.Popen[str]
    address: str

    def page(self) -> str:
        """Its /metrics."""
        return page(self.address)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send the signal. Returns exit status and log."""
        self.process.send_signal(how)
        _, log = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, log


@contextlib.contextmanager
def agent_process(
    directory: Path,
    *flags: str,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    listen: str = "127.0.0.1:0",
) -> Iterator[AgentProcess]:
    """The real agent as a process on a free loopback port, killed at the end. `prefix`: a command that runs
    another command. A later one may have the same directory."""
    address_file = directory / "address"
    address_file.unlink(missing_ok=True)
    command = [*prefix, sys.executable, "-m", "rankwatch_cli", "agent", "--listen", listen]
    command += ["--address-file", str(address_file), "--directory", str(directory / "blackboxes"), *flags]
    own = {"RANKWATCH_AGENT_STATE_DIRECTORY": str(directory / "state"), **(environ or {})}
    process = subprocess.Popen(command, env={**clean_environment(), **own}, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: address_file.exists() or process.poll() is not None, "the agent listens")
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield AgentProcess(process, address_file.read_text().strip())
    finally:
        process.kill()
        process.communicate()


def rankwatch(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the `rankwatch` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "rankwatch_cli", *arguments],
        env={**clean_environment(), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def clean_environment() -> dict[str, str]:
    """The environment without settings of rankwatch."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RANKWATCH_")}
