"""Finds the block device under a path, and its counters in /proc/diskstats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from rankwatch_agent.sources.kernel_files import parse_count
from rankwatch_agent.sources.table import Table, parse_lines


class DiskCounters(NamedTuple):
    """Counters of a block device since boot."""

    name: str
    reads: int
    read_seconds: float
    writes: int
    write_seconds: float
    io_seconds: float


def parse_diskstats(text: str) -> Table[tuple[int, int], DiskCounters]:
    """/proc/diskstats by (major, minor); columns as in the kernel's Documentation/admin-guide/iostats.rst."""
    return parse_lines(text, _parse_disk)


def parse_mount_sources(text: str) -> Table[tuple[int, int], str]:
    """/proc/*/mountinfo: the source of each mounted device number, such as /dev/nvme0n1p1."""
    return parse_lines(text, _parse_mount)


def _parse_disk(line: str) -> tuple[tuple[int, int], DiskCounters]:
    columns = line.split()
    if len(columns) < 14:
        raise ValueError(f"unexpected line {line!r:.100}")
    reads, _, _, read_ms, writes, _, _, write_ms, _, io_ms = map(parse_count, columns[3:13])
    number = parse_count(columns[0]), parse_count(columns[1])
    return number, DiskCounters(columns[2], reads, read_ms / 1000, writes, write_ms / 1000, io_ms / 1000)


def _parse_mount(line: str) -> tuple[tuple[int, int], str]:
    before, separator, after = line.partition(" - ")
    columns, rest = before.split(), after.split()
    if not separator or len(columns) < 3 or len(rest) < 2:
        raise ValueError(f"unexpected line {line!r:.100}")
    major, _, minor = columns[2].partition(":")
    return (parse_count(major), parse_count(minor)), rest[1]


def device_under(
    st_dev: int, disks: Mapping[tuple[int, int], DiskCounters], mounts: Mapping[tuple[int, int], str]
) -> DiskCounters | None:
    """The block device of a file system by its `st_dev`; None for one without, such as NFS or tmpfs.

    btrfs and some others give their files an anonymous device number; the source of the mount
    then names the device.
    """
    number = os.major(st_dev), os.minor(st_dev)
    if number in disks:
        return disks[number]
    source = PurePosixPath(mounts.get(number, ""))
    if source.is_absolute():
        return next((disk for disk in disks.values() if disk.name == source.name), None)
    return None
