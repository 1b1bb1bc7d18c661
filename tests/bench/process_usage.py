"""What a program takes: CPU and memory, while it runs and in the end; a scrape of an exporter."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .result import BenchError

MIB = 1 << 20


def ms(seconds: float) -> str:
    """Milliseconds, as text."""
    return f"{seconds * 1e3:.1f} ms"


def mib(size: float) -> str:
    """Mebibytes, as text."""
    return f"{size / MIB:.1f} MiB"


def cpu_seconds(pid: int, procfs: Path = Path("/proc")) -> float:
    """CPU time used so far, user and system; the kernel counts in ticks of usually 10 ms."""
    text = _read(procfs / str(pid) / "stat")
    # The command name, in parentheses, may hold spaces and parentheses; what follows does not.
    fields = text.rpartition(")")[2].split()
    utime, stime = int(fields[11]), int(fields[12])  # fields 14 and 15 of proc(5), counted from 3
    return (utime + stime) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int, procfs: Path = Path("/proc")) -> tuple[int, int]:
    """Resident memory now and at its peak."""
    kib = _status(pid, procfs)
    return int(kib["VmRSS"]) * 1024, int(kib["VmHWM"]) * 1024


class Footprint(NamedTuple):
    """The resources of a process and its descendants, added up."""

    cpu_seconds: float
    """Used so far by the living processes; the CPU time of a child that ended is lost."""
    resident_bytes: int
    """Pages that two of them share count twice."""
    proportional_bytes: int
    """Shared pages divided among those that share them (PSS)."""
    threads: int
    file_descriptors: int
    processes: int


def footprint(pid: int, procfs: Path = Path("/proc")) -> Footprint:
    """Resources of the process and all its descendants. A descendant that ends meanwhile does not count.

    Raises BenchError if the process itself is gone.
    """
    parts = [_footprint(pid, procfs)]
    for child in _descendants(pid, procfs):
        with suppress(BenchError):
            parts.append(_footprint(child, procfs))
    return Footprint(*(sum(values) for values in zip(*parts, strict=True)))


def _footprint(pid: int, procfs: Path) -> Footprint:
    """Resources of one process; raises BenchError if it is gone."""
    status = _status(pid, procfs)
    try:
        return Footprint(
            cpu_seconds=cpu_seconds(pid, procfs),
            resident_bytes=int(status["VmRSS"]) * 1024,
            proportional_bytes=_proportional_bytes(pid, procfs),
            threads=int(status["Threads"]),
            file_descriptors=len(list((procfs / str(pid) / "fd").iterdir())),
            processes=1,
        )
    except (KeyError, OSError) as error:  # a process that ends loses its memory and files first
        raise BenchError(f"could not read the resources of process {pid}: it has ended") from error


def _descendants(pid: int, procfs: Path) -> list[int]:
    """Children of all threads, and theirs. A thread or process that ends meanwhile has none."""
    found: list[int] = []
    try:
        threads = sorted((procfs / str(pid) / "task").iterdir())
    except OSError:
        return found
    for thread in threads:
        with suppress(BenchError):
            for child in map(int, _read(thread / "children").split()):
                found += [child, *_descendants(child, procfs)]
    return found


def _proportional_bytes(pid: int, procfs: Path) -> int:
    for line in _read(procfs / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"could not read the proportional memory of process {pid}")


def _status(pid: int, procfs: Path) -> dict[str, str]:
    lines = _read(procfs / str(pid) / "status").splitlines()
    return {
        name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if text.strip()
    }


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BenchError(f"could not read {path}: {error.strerror}") from error


class Ran(NamedTuple):
    """A program that has run to its end."""

    seconds: float
    cpu_seconds: float
    """Of the program and of all children it waited for."""
    peak_bytes: int
    """Largest resident memory of the program or of any child it waited for."""
    output: str


def run(command: Sequence[str], **variables: str) -> Ran:
    """Run it to its end, with these variables in its environment; raises BenchError if it fails."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        text, said = (each.read().decode(errors="replace") for each in (output, errors))
    if process.returncode:
        raise BenchError(f"{' '.join(command)} ended with status {process.returncode}: {said.strip()[-500:]}")
    return Ran(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


_HEADERS = {
    "Accept": (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    ),
    "Accept-Encoding": "gzip",
    "User-Agent": "Prometheus/2.42.0",
}
"""The headers that Prometheus 2.42 sends."""
_TIMEOUT_SECONDS = 10.0
"""Prometheus's own default."""


class Scrape(NamedTuple):
    """The response of an exporter."""

    seconds: float
    """From connecting to the last byte."""
    compressed_bytes: int
    text: str

    def samples(self) -> int:
        """Number of samples."""
        return sum(1 for line in self.text.splitlines() if line and not line.startswith("#"))

    def total(self, name: str) -> float:
        """Sum of all samples of this name."""
        lines = (line for line in self.text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)


def scrape(address: str) -> Scrape:
    """Scrape HOST:PORT/metrics once as Prometheus does, over a connection of its own; raises BenchError."""
    began = time.perf_counter()
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=_TIMEOUT_SECONDS)) as connection:
            connection.request("GET", "/metrics", headers=_HEADERS)
            response = connection.getresponse()
            body = response.read()
            seconds = time.perf_counter() - began
    except OSError as error:
        raise BenchError(f"could not scrape {address}: {error}") from error
    if response.status != http.HTTPStatus.OK:
        raise BenchError(f"could not scrape {address}: status {response.status}")
    plain = gzip.decompress(body) if response.getheader("Content-Encoding") == "gzip" else body
    return Scrape(seconds, len(body), plain.decode())
