"""Collector `processes`: what waits in the kernel and cannot be killed, and the services of NVIDIA's driver.

One pass over /proc/PID/stat answers both. A process in state D waits for a disk, a file server or a driver.
Some do for a moment; one that stays there is stuck with it, and so is a rank of which it is a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.source import source
from rankwatch_agent.runtime.turns import share
from rankwatch_agent.runtime.writers import RankProcess
from rankwatch_agent.sources.kernel_files import list_names, names_or_empty, text_or_empty
from rankwatch_agent.sources.shared import NodeShared

MAX_RANKS = 256
"""Ranks whose threads are read."""
MAX_THREADS = 1024
"""Threads read of one rank."""
FABRIC_MANAGER = "fabric_manager"
SERVICES = {
    "nv-fabricmanage": FABRIC_MANAGER,
    "nvidia-persiste": "persistenced",
    "nvidia-imex": "imex",
    "nv-hostengine": "hostengine",
}
"""Name of a process, which the kernel cuts off after 15 characters -> value of the label `service`."""

_STAT_BYTES = 1024
_STATE, _FLAGS = 0, 6
"""Of /proc/PID/stat, counted behind the name, which may hold anything (proc(5))."""
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD."""
_WAITING = "D"
_NVIDIA = "0x10de"
_NVSWITCH_CLASS = "0x0680"


class Process(NamedTuple):
    """A line of the process table."""

    name: str
    state: str
    kernel_thread: bool


@source(interval_seconds=30.0, deadline_seconds=10.0)  # one file of each process of the node
def processes(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield ProcessesCollector(
        procfs=config.procfs, sysfs=config.sysfs, ranks=shared.living_ranks, schedule=schedule
    )


class ProcessesCollector:
    """Reads all processes of the node that `procfs` belongs to. `ranks` gives those that train."""

    name = "processes"

    def __init__(
        self, *, procfs: Path, sysfs: Path, ranks: Callable[[], Iterable[RankProcess]], schedule: Schedule
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._pci = sysfs / "bus" / "pci" / "devices"
        self._ranks = ranks
        self._expected: set[str] = set()
        """Services that ran, or that the hardware needs."""
        self._looked_for_nvswitch = False

    def collect(self) -> Collection:
        """Read every process once. Raises CollectError where none can be seen."""
        processes = list(read_processes(self._procfs))
        if not processes:
            raise CollectError(f"could not find any process in {self._procfs}")
        waiting = sum(each.state == _WAITING and not each.kernel_thread for each in processes)
        running = {SERVICES[each.name] for each in processes if each.name in SERVICES}
        return Collection(
            (
                sample("rankwatch_host_processes_uninterruptible", (), waiting),
                *self._services(running),
                *self._rank_threads(),
            )
        )

    def _services(self, running: set[str]) -> Iterator[Series]:
        if not self._looked_for_nvswitch:
            self._looked_for_nvswitch = True
            if has_nvswitch(self._pci):
                self._expected.add(FABRIC_MANAGER)
        self._expected |= running
        for service in sorted(self._expected):
            yield sample("rankwatch_nvidia_service_running", (service,), float(service in running))

    def _rank_threads(self) -> Iterator[Series]:
        chosen, _ = share(self._ranks(), owner=lambda each: each.owner, most=MAX_RANKS)
        for run, rank, pid, _ in chosen:
            threads = self._procfs / str(pid) / "task"
            names = filter(str.isdecimal, names_or_empty(str(threads))[:MAX_THREADS])
            states = [process.state for process in _read(str(threads), names)]
            if states:
                yield sample(
                    "rankwatch_rank_uninterruptible_threads", (run, str(rank)), states.count(_WAITING)
                )


def read_processes(procfs: Path) -> Iterator[Process]:
    """Yield every process that is seen; one that ends meanwhile is left out. Raises CollectError."""
    try:
        names = os.listdir(procfs)  # noqa: PTH208 - a Path for each of thousands of processes costs
    except OSError as error:
        raise CollectError(f"could not list {procfs}: {error.strerror or error}") from None
    yield from _read(str(procfs), filter(str.isdecimal, names))


def _read(directory: str, names: Iterable[str]) -> Iterator[Process]:
    for name in names:
        try:
            file = os.open(f"{directory}/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                raw = os.read(file, _STAT_BYTES)
            finally:
                os.close(file)
        except OSError:
            continue  # it has ended
        process = parse_stat(raw)
        if process is not None:
            yield process


def parse_stat(raw: bytes) -> Process | None:
    """Parse /proc/PID/stat; None where it is no such file."""
    before, _, after = raw.rpartition(b")")
    fields = after.split()
    if len(fields) <= _FLAGS or not fields[_FLAGS].isdigit():
        return None
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return Process(
        name, fields[_STATE].decode("ascii", "replace"), bool(int(fields[_FLAGS]) & _KERNEL_THREAD)
    )


def has_nvswitch(devices: Path) -> bool:
    """Return True if an NVSwitch is on the PCI bus: a bridge of NVIDIA. Those of NVLink 5 are on no bus."""
    try:
        names = list_names(str(devices))
    except (NotApplicable, CollectError):
        return False
    return any(
        _word(devices / name / "vendor") == _NVIDIA
        and _word(devices / name / "class").startswith(_NVSWITCH_CLASS)
        for name in names
    )


def _word(path: Path) -> str:
    return text_or_empty(path).strip().lower()
