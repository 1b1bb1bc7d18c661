"""The disk collector, and finding the block device under a path."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.disk import (
    DiskCollector,
    DiskCounters,
    find_block_device,
    parse_diskstats,
    parse_mount_sources,
)
from support.agent.process import values

DISKSTATS = " 259 0 nvme0n1 10 1 2 1500 20 3 4 2500 0 750 4000 0 0 0 0 0 0\n"
NVME = DiskCounters("nvme0n1", 10, 1.5, 20, 2.5, 0.75)
MOUNTS = (
    "27 1 259:0 / / rw,relatime shared:1 - ext4 /dev/nvme0n1 rw\n"
    "30 27 0:40 / /data rw - btrfs /dev/nvme0n1 rw\n"
    "31 27 0:41 / /home rw - nfs4 server:/home rw\n"
)


def disk(path: Path, root: Path, **options: object) -> DiskCollector:
    return DiskCollector(path=path, rootfs=root, procfs=root / "proc", schedule=Schedule(5, 5), **options)  # type: ignore[arg-type]


def test_parse_diskstats() -> None:
    """Times are in seconds. Older kernels have 14 columns."""
    assert parse_diskstats(DISKSTATS) == ({(259, 0): NVME}, ())
    assert parse_diskstats("8 1 sda1 1 0 0 0 0 0 0 0 0 0 0\n").found[8, 1].reads == 1


@pytest.mark.parametrize("line", ["8 1 sda1 1 2\n", "8 x sda1 1 0 0 0 0 0 0 0 0 0 0\n"])
def test_broken_line_of_diskstats(line: str) -> None:
    """Too few columns, or no numbers: only that device is lost."""
    assert parse_diskstats(line + DISKSTATS) == ({(259, 0): NVME}, ("line 1",))


@pytest.mark.parametrize("line", ["garbage\n", "27 1 259:0 / /\n", "27 1 a:b / / rw - ext4 /dev/a rw\n"])
def test_broken_line_of_mountinfo(line: str) -> None:
    """Without separator or device number: only that mount is lost."""
    assert parse_mount_sources(line + MOUNTS).found == parse_mount_sources(MOUNTS).found
    assert parse_mount_sources(line + MOUNTS).broken == ("line 1",)


def test_find_block_device() -> None:
    """By number, or by the source of the mount for btrfs. NFS has none."""
    disks, mounts = parse_diskstats(DISKSTATS).found, parse_mount_sources(MOUNTS).found
    found = {(259, 0): NVME, (0, 40): NVME, (0, 41): None, (0, 99): None}
    assert {each: find_block_device(os.makedev(*each), disks, mounts) for each in found} == found


def test_series_of_a_path(tmp_path: Path) -> None:
    """The label is the path on the host, without the root it is mounted at."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "proc").mkdir()
    number = tmp_path.stat().st_dev
    line = DISKSTATS.replace("259 0", f"{os.major(number)} {os.minor(number)}")
    (tmp_path / "proc/diskstats").write_text(line)
    collector = disk(Path("/checkpoints"), tmp_path)
    found = values([collector.collect()])
    assert collector.name == "disk:/checkpoints"
    assert found["rankwatch_filesystem_size_bytes", "/checkpoints"] > 0
    assert found["rankwatch_filesystem_read_only", "/checkpoints"] == 0
    assert found["rankwatch_disk_write_seconds_total", "/checkpoints", "nvme0n1"] == 2.5
    assert found["rankwatch_disk_io_seconds_total", "/checkpoints", "nvme0n1"] == 0.75


def test_space_without_a_device(tmp_path: Path) -> None:
    """For example on a network file system."""
    found = values([disk(Path("/"), tmp_path).collect()])
    assert {name for name, *_ in found} == {
        "rankwatch_filesystem_size_bytes",
        "rankwatch_filesystem_available_bytes",
        "rankwatch_filesystem_read_only",
    }


def test_missing_or_broken_path(tmp_path: Path) -> None:
    """A volume that is not mounted must not look like a path that was never configured."""

    def stale(path: Path) -> os.statvfs_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with pytest.raises(CollectError, match=r"could not read .*/gone: No such file"):
        disk(Path("/gone"), tmp_path).collect()
    with pytest.raises(CollectError, match=r"Stale file handle"):
        disk(Path("/"), tmp_path, statvfs=stale).collect()
