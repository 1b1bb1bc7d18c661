"""Collector `disk`: space of the file system that holds a path, and load of the block device under it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, collect_parts, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.kernel_files import Table, parse_count, parse_kernel_file, parse_lines
from rankwatch_agent.sources.shared import NodeShared

_DISK_COUNTERS = {
    "reads": metric("rankwatch_disk_reads_total"),
    "writes": metric("rankwatch_disk_writes_total"),
    "read_seconds": metric("rankwatch_disk_read_seconds_total"),
    "write_seconds": metric("rankwatch_disk_write_seconds_total"),
    "io_seconds": metric("rankwatch_disk_io_seconds_total"),
}


class DiskCounters(NamedTuple):
    """Counters of a block device since boot."""

    name: str
    reads: int
    read_seconds: float
    writes: int
    write_seconds: float
    io_seconds: float


@source(interval_seconds=15.0, deadline_seconds=10.0)  # often a network file system under load, and slow
def disk(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    # One for each path: a file system that hangs costs only its own series.
    for path in dict.fromkeys(config.checkpoint_paths):
        yield DiskCollector(path=path, rootfs=config.rootfs, procfs=config.procfs, schedule=schedule)


class DiskCollector:
    """Watches one path. A call to a dead file server blocks for ever, so each path has its own collector.

    `path` is the path on the host and becomes the label. The file itself is looked up below `rootfs`.
    """

    def __init__(
        self,
        *,
        path: Path,
        rootfs: Path,
        procfs: Path,
        schedule: Schedule,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> None:
        self.name = f"disk:{path}"
        self.interval_seconds, self.deadline_seconds = schedule
        self._label = str(path)
        self._path = rootfs / path.relative_to(path.anchor)
        self._procfs = procfs
        self._statvfs = statvfs
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Read space and counters.

        Raises CollectError, also where the path does not exist: a volume that is not mounted looks like that.
        """
        try:
            space = self._statvfs(self._path)
            st_dev = self._path.stat().st_dev
        except OSError as error:
            raise CollectError(f"could not read {self._path}: {error.strerror or error}") from None
        parts = (lambda: self._space(space), lambda: self._disk(st_dev))
        return collect_parts(self.name, parts, self._log_limit)

    def _space(self, space: os.statvfs_result) -> Iterable[Series]:
        labels = (self._label,)
        yield sample("rankwatch_filesystem_size_bytes", labels, space.f_blocks * space.f_frsize)
        yield sample("rankwatch_filesystem_available_bytes", labels, space.f_bavail * space.f_frsize)
        yield sample("rankwatch_filesystem_read_only", labels, float(bool(space.f_flag & os.ST_RDONLY)))

    def _disk(self, st_dev: int) -> Iterator[Series | CollectError]:
        path = self._procfs / "diskstats"
        disks = parse_kernel_file(path, parse_diskstats)
        yield from disks.errors(path)
        sources, errors = self._mount_sources()
        yield from errors
        disk = find_block_device(st_dev, disks.found, sources)
        if disk is None:
            raise NotApplicable(f"no block device under {self._path}")
        for field, each in _DISK_COUNTERS.items():
            yield Series(each, (self._label, disk.name), getattr(disk, field))

    def _mount_sources(self) -> tuple[Mapping[tuple[int, int], str], list[CollectError]]:
        # Process 1 sees the host's mounts where procfs is the host's, but may be hidden or another user's.
        for process in ("1", "self"):
            path = self._procfs / process / "mountinfo"
            try:
                table = parse_kernel_file(path, parse_mount_sources)
            except (NotApplicable, CollectError):
                continue
            return table.found, table.errors(path)
        return {}, []


def find_block_device(
    st_dev: int, disks: Mapping[tuple[int, int], DiskCounters], mounts: Mapping[tuple[int, int], str]
) -> DiskCounters | None:
    """Return the block device of a file system by its `st_dev`, or None for NFS, tmpfs and the like.

    btrfs and some others give files an anonymous device number. The source of the mount then names the
    device.
    """
    number = os.major(st_dev), os.minor(st_dev)
    if number in disks:
        return disks[number]
    source = PurePosixPath(mounts.get(number, ""))
    if source.is_absolute():
        return next((disk for disk in disks.values() if disk.name == source.name), None)
    return None


def parse_diskstats(text: str) -> Table[tuple[int, int], DiskCounters]:
    """Parse /proc/diskstats by (major, minor). Columns: Documentation/admin-guide/iostats.rst."""
    return parse_lines(text, _parse_disk)


def _parse_disk(line: str) -> tuple[tuple[int, int], DiskCounters]:
    columns = line.split()
    if len(columns) < 14:
        raise ValueError(f"unexpected line {line!r:.100}")
    reads, _, _, read_ms, writes, _, _, write_ms, _, io_ms = map(parse_count, columns[3:13])
    number = parse_count(columns[0]), parse_count(columns[1])
    return number, DiskCounters(columns[2], reads, read_ms / 1000, writes, write_ms / 1000, io_ms / 1000)


def parse_mount_sources(text: str) -> Table[tuple[int, int], str]:
    """Parse /proc/*/mountinfo: (major, minor) -> source of the mount, such as /dev/nvme0n1p1."""
    return parse_lines(text, _parse_mount)


def _parse_mount(line: str) -> tuple[tuple[int, int], str]:
    before, separator, after = line.partition(" - ")
    columns, rest = before.split(), after.split()
    if not separator or len(columns) < 3 or len(rest) < 2:
        raise ValueError(f"unexpected line {line!r:.100}")
    major, _, minor = columns[2].partition(":")
    return (parse_count(major), parse_count(minor)), rest[1]
