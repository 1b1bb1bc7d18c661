"""Collector `mounts`: space and answers of the file systems that training processes see, and counters of NFS.

Which file systems a run uses stands in the mount table of its process, so nobody has to configure them. A
dead file server blocks whoever asks it: each file system is asked by a thread of its own, and one that does
not answer is not asked again until it does.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.runtime.turns import share
from rankwatch_agent.runtime.writers import RankProcess
from rankwatch_agent.sources.kernel_files import parse_count, text_or_empty
from rankwatch_agent.sources.shared import NodeShared

ANSWER_SECONDS = 2.0
"""Time that all file systems together get for their answers."""
MAX_RUNS = 64
MAX_MOUNTS = 16
"""File systems of one run that get series."""
MAX_PROBES = 64
"""File systems asked, and so threads that a node full of dead file servers can cost."""
MAX_PROBES_OF_USER = 16
"""Of these, for the runs of one user: those that never answer keep their places."""
MAX_NFS = 32
_MOST_CHARACTERS = 512 << 10
"""Of a mount table, some 4,000 mounts. In a namespace of their own, users can make as many as they like."""

_KERNEL_TYPES = frozenset(
    (
        *("autofs", "bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs"),
        *("efivarfs", "fusectl", "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc", "pstore", "ramfs"),
        *("rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs"),
        *("fuse.lxcfs", "fuse.portal"),
    )
)
"""Types of file systems that hold no data of a run."""
_MEMORY_TYPE = "tmpfs"
_MEMORY_PATHS = ("/dev/shm", "/tmp")
_SYSTEM_PATHS = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/snap", "/var/lib/kubelet")
_NETWORK_TYPES = re.compile(r"nfs|lustre|gpfs|ceph|cifs|beegfs|wekafs|glusterfs|9p|virtiofs|fuse\.")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_DEAD = frozenset(
    {errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ESHUTDOWN}
)
"""Errors of a file server that is gone; others, such as a missing permission, say nothing about it."""
_NFS_OPERATIONS = ("read", "write", "commit", "open", "getattr", "lookup")


class Mount(NamedTuple):
    """A line of a mount table."""

    device: str
    """major:minor. It is the same in every mount namespace."""
    path: str
    type: str
    source: str


class Place(NamedTuple):
    """Where a file system is, and who has named it."""

    paths: tuple[str, ...]
    """That may lead to it, the best first."""
    owner: int
    """User id."""


@source(interval_seconds=15.0, deadline_seconds=10.0)  # a file server that is gone costs two seconds
def mounts(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield MountsCollector(
        procfs=config.procfs, rootfs=config.rootfs, ranks=shared.living_ranks, schedule=schedule
    )


class MountsCollector:
    """Asks the file systems of the ranks' processes. `rootfs` finds them where those may not be entered."""

    name = "mounts"

    def __init__(
        self,
        *,
        procfs: Path,
        rootfs: Path,
        ranks: Callable[[], Iterable[RankProcess]],
        schedule: Schedule,
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._procfs = procfs
        self._rootfs = rootfs
        self._ranks = ranks
        self._prober = FileSystemProber(statvfs, answer_seconds)
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Raise NotApplicable where no rank lives and no NFS is mounted."""
        first: dict[str, RankProcess] = {}
        for rank in self._ranks():
            first.setdefault(rank.run, rank)  # ranks of one run on a node see the same
        ranks, _ = share(first.values(), owner=lambda each: each.owner, most=MAX_RUNS)
        parts = (lambda: self._runs(ranks), lambda: self._nfs([str(each.pid) for each in ranks]))
        return collect_parts(self.name, parts, self._log_limit)

    def _runs(self, ranks: Iterable[RankProcess]) -> Iterator[Series]:
        found: list[tuple[str, Mount]] = []
        places: dict[str, Place] = {}
        for run, _, pid, owner in ranks:  # in the order of turns, so that all users have some asked
            process = self._procfs / str(pid)
            mounts = parse_mountinfo(text_or_empty(process / "mountinfo")[:_MOST_CHARACTERS])
            try:  # in the process's own mount namespace; perhaps nobody may read it
                directory = str((process / "cwd").readlink())
            except OSError:
                directory = ""
            for mount in data_mounts(mounts, directory):
                found.append((run, mount))
                inside, outside = f"{process}/root{mount.path}", str(self._rootfs / mount.path.lstrip("/"))
                places.setdefault(mount.device, Place((inside, outside), owner))
        answers = self._prober.probe(places)
        for run, mount in found:
            yield from _mount_series(run, mount, answers.get(mount.device))

    def _nfs(self, pids: Iterable[str]) -> Iterator[Series]:
        # Process 1 sees the host's mounts, but shows them to root only. A source that several processes see
        # has the same counters in each.
        known: dict[str, None] = {}
        for process in ("1", "self", *pids):
            for mount in parse_mountstats(text_or_empty(self._procfs / process / "mountstats")):
                if mount.source not in known and len(known) < MAX_NFS:
                    known[mount.source] = None
                    yield from _nfs_series(mount)


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse /proc/PID/mountinfo. Lines of another form are left out."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        columns, rest = before.split(" "), after.split(" ")
        if len(columns) >= 6 and len(rest) >= 3:
            mounts.append(Mount(columns[2], _unescape(columns[4]), rest[0], _unescape(rest[1])))
    return mounts


def data_mounts(mounts: Iterable[Mount], directory: str) -> list[Mount]:
    """Return the file systems that can hold data of a process, each once: its working directory's first.

    A file system that is mounted at several places is named after the one that is best for a person. One that
    another was mounted over cannot be reached.
    """
    found: dict[str, Mount] = {}
    reachable = {mount.path: mount for mount in mounts}.values()
    for mount in sorted(filter(_holds_data, reachable), key=lambda each: _rank_of_place(each, directory)):
        found.setdefault(mount.device, mount)
    return list(found.values())[:MAX_MOUNTS]


def _holds_data(mount: Mount) -> bool:
    if mount.type in _KERNEL_TYPES:
        return False
    if mount.type == _MEMORY_TYPE:
        return mount.path in _MEMORY_PATHS
    return not _inside(mount.path, *_SYSTEM_PATHS)


def _rank_of_place(mount: Mount, directory: str) -> tuple[bool, int, bool, int, str]:
    """Sort the mount that holds the working directory first, then network file systems, then short paths."""
    holds = _inside(directory, mount.path)
    depth = -len(mount.path) if holds else 0
    return not holds, depth, not _NETWORK_TYPES.match(mount.type), len(mount.path), mount.path


def _inside(path: str, *directories: str) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in directories)


def _unescape(text: str) -> str:
    """Mount tables write a blank as \\040."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)


class FileSystemState(NamedTuple):
    """What a file system answered."""

    responding: bool | None
    """None where nobody may ask it."""
    space: os.statvfs_result | None


class FileSystemProber:
    """Asks file systems side by side, each in a thread. Used by one thread."""

    def __init__(self, statvfs: Callable[[str], os.statvfs_result], answer_seconds: float) -> None:
        self._statvfs = statvfs
        self._answer_seconds = answer_seconds
        self._probes: dict[str, _Probe] = {}

    def probe(self, places: Mapping[str, Place]) -> dict[str, FileSystemState]:
        """Return the state of each device. places: by device.

        One that still owes an older answer is not asked again. It counts as dead.
        """
        waiting = {device: each for device, each in self._probes.items() if each.is_alive()}
        self._probes = waiting
        asked = Counter(each.place.owner for each in waiting.values())
        for device, place in places.items():
            room = len(self._probes) < MAX_PROBES and asked[place.owner] < MAX_PROBES_OF_USER
            if device not in waiting and room:
                asked[place.owner] += 1
                self._probes[device] = _Probe(device, place, self._statvfs)
                self._probes[device].start()
        end = time.monotonic() + self._answer_seconds
        for probe in self._probes.values():
            probe.join(max(0.0, end - time.monotonic()))
        return {
            device: FileSystemState(False, None) if each.is_alive() else each.answer
            for device, each in self._probes.items()
        }


class _Probe(threading.Thread):
    """Asks one file system, and may never end."""

    def __init__(self, device: str, place: Place, statvfs: Callable[[str], os.statvfs_result]) -> None:
        super().__init__(name=f"statvfs-{device}", daemon=True)
        self.answer = FileSystemState(None, None)
        self._device = device
        self.place = place
        self._statvfs = statvfs

    def run(self) -> None:
        """Take the first path that leads to the file system."""
        for path in self.place.paths:
            try:
                number = os.stat(path).st_dev  # noqa: PTH116 - the path may hold a name that is no text
                if f"{os.major(number)}:{os.minor(number)}" == self._device:
                    self.answer = FileSystemState(True, self._statvfs(path))
                    return
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in _DEAD:
                    self.answer = FileSystemState(False, None)
                    return


def _mount_series(run: str, mount: Mount, answer: FileSystemState | None) -> Iterator[Series]:
    labels = (run, mount.path)
    yield sample("rankwatch_run_mount_info", (*labels, mount.source, mount.type), 1)
    if answer is None or answer.responding is None:
        return
    yield sample("rankwatch_run_mount_responding", labels, float(answer.responding))
    if answer.space is not None:
        space = answer.space
        yield sample("rankwatch_run_mount_size_bytes", labels, space.f_blocks * space.f_frsize)
        yield sample("rankwatch_run_mount_available_bytes", labels, space.f_bavail * space.f_frsize)
        yield sample("rankwatch_run_mount_read_only", labels, float(bool(space.f_flag & os.ST_RDONLY)))


class NfsMount(NamedTuple):
    """Counters of an NFS mount since it was mounted."""

    source: str
    """SERVER:/EXPORT."""
    path: str
    read_bytes: int
    write_bytes: int
    operations: Mapping[str, int]
    seconds: Mapping[str, float]
    """From the request to its end, by operation."""
    retransmissions: int
    timeouts: int


def parse_mountstats(text: str) -> Iterator[NfsMount]:
    """Parse /proc/PID/mountstats (nfs_show_stats in the kernel). A mount with broken lines is left out."""
    for block in re.split(r"^device ", text, flags=re.MULTILINE):
        head = re.match(r"(\S+) mounted on (\S+) with fstype nfs\d? ", block)
        if head is not None:
            try:
                yield _parse_nfs(_unescape(head[1]), _unescape(head[2]), block)
            except (ValueError, IndexError):
                continue


def _parse_nfs(source: str, path: str, block: str) -> NfsMount:
    transferred = (0, 0)
    operations: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    sent = timeouts = 0
    counted, _, by_operation = block.partition("per-op statistics")
    for line in counted.splitlines():
        name, _, rest = line.strip().partition(":")
        if name == "bytes":
            columns = rest.split()
            transferred = (parse_count(columns[4]), parse_count(columns[5]))
    for line in by_operation.splitlines():
        name, separator, rest = line.strip().partition(":")
        if separator:
            columns = rest.split()
            operation = name.lower() if name.lower() in _NFS_OPERATIONS else "other"
            operations[operation] += parse_count(columns[0])
            sent += parse_count(columns[1])
            timeouts += parse_count(columns[2])
            seconds[operation] += parse_count(columns[7]) / 1000  # type: ignore[assignment]
    retransmissions = max(0, sent - operations.total())
    return NfsMount(source, path, *transferred, operations, seconds, retransmissions, timeouts)


def _nfs_series(mount: NfsMount) -> Iterator[Series]:
    labels = (mount.path, mount.source)
    yield sample("rankwatch_nfs_read_bytes_total", labels, mount.read_bytes)
    yield sample("rankwatch_nfs_write_bytes_total", labels, mount.write_bytes)
    yield sample("rankwatch_nfs_retransmissions_total", labels, mount.retransmissions)
    yield sample("rankwatch_nfs_timeouts_total", labels, mount.timeouts)
    for operation, count in mount.operations.items():
        yield sample("rankwatch_nfs_operations_total", (*labels, operation), count)
        yield sample("rankwatch_nfs_operation_seconds_total", (*labels, operation), mount.seconds[operation])
