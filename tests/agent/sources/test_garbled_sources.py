"""A garbled kernel file costs the series that come from it, and no other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule
from rankwatch_agent.runtime.supervisor import Supervisor
from rankwatch_agent.sources.disk import DiskCollector
from rankwatch_agent.sources.host import HostCollector
from rankwatch_agent.sources.mounts import MountsCollector
from rankwatch_agent.sources.network import DeviceFilter, NetworkCollector
from rankwatch_agent.sources.process_table import ProcessesCollector
from rankwatch_agent.sources.rdma import RdmaCollector
from support.agent.process import until, values
from support.sources.node_tree import NodeTree, build_node

SCHEDULE = Schedule(5, 5)
SPACE = os.statvfs_result((4096, 4096, 9, 5, 5, 9, 5, 5, 0, 255))
"""Of a file system that nobody else fills meanwhile."""
NUMBER = re.compile(rb"\d+")
GARBLINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "binary": lambda raw: b"\xff\x00\xfe\x80" * 20,
    "no numbers": lambda raw: NUMBER.sub(b"x", raw),
    "negative": lambda raw: NUMBER.sub(b"-5", raw),
    "beyond a counter": lambda raw: NUMBER.sub(str(2**64).encode(), raw),
    "without end": lambda raw: NUMBER.sub(b"9" * 5000, raw),
    "half": lambda raw: raw[: len(raw) // 2],
    "missing columns": lambda raw: b"\n".join(line[: len(line) // 2] for line in raw.split(b"\n")),
}


def host(node: NodeTree) -> Collector:
    return HostCollector(procfs=node.procfs, schedule=SCHEDULE)


def network(node: NodeTree) -> Collector:
    return NetworkCollector(
        procfs=node.procfs, sysfs=node.sysfs, device_filter=DeviceFilter(), schedule=SCHEDULE
    )


def disk(node: NodeTree) -> Collector:
    number = node.procfs.stat().st_dev
    line = f" {os.major(number)} {os.minor(number)} sda 10 1 2 1500 20 3 4 2500 0 750 4000\n"
    if not (node.procfs / "diskstats").exists():
        (node.procfs / "diskstats").write_text(line + "   8 1 sda1 1 0 0 0 0 0 0 0 0 0 0\n")
        (node.procfs / "1").mkdir(exist_ok=True)
        (node.procfs / "1/mountinfo").write_text("27 1 259:0 / / rw - ext4 /dev/nvme0n1 rw\n")
    return DiskCollector(
        path=Path("/"), rootfs=node.procfs, procfs=node.procfs, schedule=SCHEDULE, statvfs=lambda path: SPACE
    )


def rdma(node: NodeTree) -> Collector:
    return RdmaCollector(sysfs=node.sysfs, device_filter=DeviceFilter(), schedule=SCHEDULE)


def processes(node: NodeTree) -> Collector:
    return ProcessesCollector(procfs=node.procfs, sysfs=node.sysfs, ranks=lambda: (), schedule=SCHEDULE)


def mounts(node: NodeTree) -> Collector:
    other = node.procfs / "self" / "mountstats"
    if not other.exists():
        other.parent.mkdir()
        other.write_text((node.procfs / "1/mountstats").read_text().replace("fs01", "fs02"))
    return MountsCollector(procfs=node.procfs, rootfs=node.procfs, ranks=lambda: (), schedule=SCHEDULE)


PORT = "sys/class/infiniband/mlx5_0/ports/1"
NET_DEV = "rankwatch_network_(receive|transmit)_(bytes|errors|drops)_total"


@pytest.mark.parametrize("garbling", GARBLINGS)
@pytest.mark.parametrize(
    ("build", "file", "own"),
    [
        (host, "proc/stat", "rankwatch_host_cpu.*"),
        (host, "proc/meminfo", "rankwatch_host_memory_.*"),
        (host, "proc/vmstat", "rankwatch_host_oom_kills_total"),
        (host, "proc/pressure/cpu", "rankwatch_host_pressure_waiting_seconds_total cpu"),
        (network, "sys/class/net/ib0/operstate", "rankwatch_network_up ib0"),
        (network, "sys/class/net/ib0/mtu", "rankwatch_network_mtu_bytes ib0"),
        (network, "sys/class/net/ib0/carrier_changes", "rankwatch_network_speed_bytes ib0"),
        (network, "sys/class/net/ib0/carrier_down_count", "rankwatch_network_link_flaps_total ib0"),
        (network, "sys/class/net/ib0/speed", "rankwatch_network_speed_bytes ib0"),
        (processes, "proc/4711/stat", "rankwatch_(host_processes|nvidia_service)_.*"),
        (mounts, "proc/1/mountstats", "rankwatch_nfs_.* fs01:/checkpoints"),
        (disk, "proc/diskstats", "rankwatch_disk_.*"),
        (disk, "proc/1/mountinfo", "rankwatch_disk_.*"),
        (rdma, f"{PORT}/counters/port_rcv_data", "rankwatch_rdma_receive_bytes_total mlx5_0 1"),
    ],
)
def test_garbled_file(
    tmp_path: Path, build: Callable[[NodeTree], Collector], file: str, own: str, garbling: str
) -> None:
    """It costs no series of another file."""
    node = build_node(tmp_path, gpus=0, ports=2, odd=False)
    before = shown(build(node).collect())
    path = tmp_path / file
    path.write_bytes(GARBLINGS[garbling](path.read_bytes()))
    after = shown(build(node).collect())
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            assert re.fullmatch(f"{own}( .*)?", name), f"{name} is no series of {file}"


@pytest.mark.parametrize("garbling", GARBLINGS)
def test_garbled_line(tmp_path: Path, garbling: str) -> None:
    """It costs only the counters of its interface and counts as a broken part. Series from sysfs stay."""
    node = build_node(tmp_path, gpus=0, ports=2, odd=False)
    before = shown(network(node).collect())
    dev = node.procfs / "net/dev"
    lines = dev.read_bytes().splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if line.lstrip().startswith(b"ib0:"))
    lines[at] = GARBLINGS[garbling](lines[at].rstrip(b"\n")) + b"\n"
    dev.write_bytes(b"".join(lines))
    collection = network(node).collect()
    after = shown(collection)
    lost = before.keys() - after.keys()
    assert after == {name: value for name, value in before.items() if name not in lost}
    assert len(lost) == 6
    assert all(re.fullmatch(f"{NET_DEV} ib0", name) for name in lost)
    assert collection.broken_parts == 1


def test_broken_parts_are_counted(tmp_path: Path) -> None:
    """The collector stays ok, since its other series are there."""
    node = build_node(tmp_path, gpus=0, ports=0, odd=False)
    (node.procfs / "meminfo").write_text("x\n")
    (node.procfs / "vmstat").write_text("oom_kill x\n")
    collector = HostCollector(procfs=node.procfs, schedule=Schedule(0.01, 5))
    supervisor = Supervisor([collector], version="1")

    def health(metric: str, *labels: str) -> float:
        return values(supervisor.snapshot().collections).get((f"rankwatch_collector_{metric}", *labels), 0)

    supervisor.start()
    try:
        until(lambda: health("read_errors_total", "host") >= 4, "two runs ended")
        assert health("state", "host", "ok") == 1
    finally:
        supervisor.stop(1.0)


def shown(collection: Collection) -> dict[str, float]:
    return {" ".join(key): value for key, value in values([collection]).items()}
