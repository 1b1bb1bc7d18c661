"""A tree of /proc and /sys of a GPU node, for collectors that read files.

Two sockets, four PCIe switches; below each switch two GPUs (where the fake driver says that they are) and two
ConnectX-7 with one 400 Gb/s InfiniBand port each, mlx5_0 ... and ib0 ... No two ports have the same counters.
Beside them a management NIC eth0 and, with `odd`, what a real node has too: a virtual function (mlx5_vf0), a
device that knows only half of the files (efa_0), a counter that firmware refuses (on the last port).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from support.gpu.nvml_node import hopper_node
from support.paths import TESTS

PROC = TESTS / "agent" / "fixtures" / "proc"
PER_SWITCH = 2
PER_SOCKET = 4
"""GPUs, and NICs, of one socket, on two switches."""
DOWNSTREAM = {"nic": 0, "gpu": 1}

COUNTERS = (
    *("VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery"),
    *("local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets"),
    *("port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors", "port_rcv_packets"),
    *("port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_constraint_errors"),
    *("port_xmit_data", "port_xmit_discards", "port_xmit_packets", "port_xmit_wait", "symbol_error"),
    *("unicast_rcv_packets", "unicast_xmit_packets"),
)
HARDWARE_COUNTERS = (
    *("duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent"),
    *("np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err"),
    *("req_cqe_error", "req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request"),
    *("resp_cqe_error", "resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors"),
    *("rnr_nak_retry_err", "roce_adp_retrans", "roce_slow_restart", "rp_cnp_handled", "rp_cnp_ignored"),
    *("rx_atomic_requests", "rx_icrc_encapsulated", "rx_read_requests", "rx_write_requests"),
)
EFA_COUNTERS = (
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rx_bytes",
    "rx_drops",
    "rx_pkts",
    "tx_bytes",
    "tx_pkts",
)


class NodeTree(NamedTuple):
    """Paths of the tree."""

    procfs: Path
    sysfs: Path


def build_node(root: Path, gpus: int = 8, ports: int = 8, *, odd: bool = True) -> NodeTree:
    """Writes the tree below `root`."""
    node = NodeTree(root / "proc", root / "sys")
    shutil.copytree(PROC, node.procfs)
    (node.procfs / "net/dev").write_text(_net_dev(ports))
    for index, bus in enumerate(gpu_buses(gpus)):
        path = _switch(node.sysfs, index, "gpu")
        add_pci(
            node.sysfs, f"{path}/0000:{bus:02x}:00.0", "0x030200", "0x10de", "nvidia", index // PER_SOCKET
        )
    for index in range(ports):
        _add_infiniband(node.sysfs, index, odd=odd and index == ports - 1)
    _add_management(node.sysfs)
    if odd:
        _add_virtual_function(node.sysfs)
        _add_efa(node.sysfs)
    return node


def gpu_buses(gpus: int) -> list[int]:
    """Returns the PCI buses of the GPUs in the fake driver."""
    return [gpu["pci"]["bus"] for gpu in hopper_node(gpus)["gpus"]]


def nic_address(index: int) -> str:
    """PCI address of mlx5_<index>."""
    return f"0000:{0x19 + 0x10 * index:02x}:00.0"


def add_pci(
    sysfs: Path, path: str, kind: str, vendor: str = "0x15b3", driver: str = "", numa_node: int = -1
) -> Path:
    """Adds a PCI device at `path` below /sys/devices, listed on the bus. Returns its directory."""
    device = sysfs / "devices" / path
    write(device, {"class": kind, "vendor": vendor, "numa_node": numa_node})
    link(sysfs / "bus/pci/devices" / device.name, device)
    if driver:
        module = sysfs / "bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        link(device / "driver", module)
    return device


def add_rdma(sysfs: Path, device: Path, name: str, files: Mapping[str, object]) -> Path:
    """Adds an RDMA device of a PCI device. Returns its directory."""
    directory = device / "infiniband" / name
    write(directory, files)
    link(directory / "device", device)
    link(sysfs / "class/infiniband" / name, directory)
    return directory


def add_interface(sysfs: Path, device: Path, name: str, **files: object) -> Path:
    """Adds a network interface of a PCI device, up by default. Returns its directory."""
    directory = device / "net" / name
    up = {"operstate": "up", "mtu": 1500, "carrier_changes": 2, "carrier_down_count": 1, "dev_port": 0}
    write(directory, {**up, "ifindex": 2, "address": "02:00:00:00:00:01", "speed": 25000, **files})
    link(directory / "device", device)
    link(sysfs / "class/net" / name, directory)
    return directory


def write(directory: Path, files: Mapping[str, object]) -> None:
    """Writes each file with a newline at its end, as the kernel does."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"{content}\n")


def link(at: Path, to: Path) -> None:
    """Creates a relative symlink as in sysfs."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(os.path.relpath(to, at.parent))


def port_files(
    counters: Mapping[str, object], hardware: Mapping[str, object], **files: object
) -> dict[str, object]:
    """Returns the files of port 1, by default an active InfiniBand port."""
    usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    found = {**usual, "link_layer": "InfiniBand", **files}
    found |= {f"counters/{name}": value for name, value in counters.items()}
    found |= {f"hw_counters/{name}": value for name, value in hardware.items()}
    return {f"ports/1/{name}": value for name, value in found.items()}


def counters_of(index: int) -> dict[str, object]:
    """Counters of port `index` by name: 1000 (index + 1) and the name's place in COUNTERS."""
    return {name: 1000 * (index + 1) + place for place, name in enumerate(COUNTERS)}


def hardware_counters_of(index: int) -> dict[str, object]:
    """Hardware counters of port `index` by name: 100 (index + 1) and the name's place in the list."""
    values: dict[str, object] = {n: 100 * (index + 1) + place for place, n in enumerate(HARDWARE_COUNTERS)}
    return values | {"lifespan": 10}


def _switch(sysfs: Path, index: int, kind: str) -> str:
    """Returns the path to the downstream port of the index-th GPU or NIC. Writes the bridges on the way."""
    number, place = divmod(index, PER_SWITCH)
    bus = 0x16 + 0x20 * number
    port = PER_SWITCH * place + DOWNSTREAM[kind]
    path = f"pci0000:{bus:02x}"
    for bridge in (f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0", f"0000:{bus + 2:02x}:{port:02x}.0"):
        path += f"/{bridge}"
        if not (sysfs / "devices" / path).exists():
            add_pci(sysfs, path, "0x060400", "0x1000", "pcieport", index // PER_SOCKET)
    return path


def _add_infiniband(sysfs: Path, index: int, *, odd: bool) -> None:
    path = f"{_switch(sysfs, index, 'nic')}/{nic_address(index)}"
    device = add_pci(sysfs, path, "0x020700", driver="mlx5_core", numa_node=index // PER_SOCKET)
    counters = counters_of(index) | ({"port_rcv_constraint_errors": "N/A (no PMA)"} if odd else {})
    identity = {"board_id": "MT_0000000838", "fw_ver": f"28.39.{2000 + index}", "hca_type": "MT4129"}
    files = port_files(counters, hardware_counters_of(index))
    add_rdma(sysfs, device, f"mlx5_{index}", {**identity, **files})
    address = ":".join(f"{byte:02x}" for byte in (*range(19), index))
    # IPoIB knows no speed.
    add_interface(sysfs, device, f"ib{index}", mtu=4092, ifindex=10 + index, address=address, speed=-1)


def _add_management(sysfs: Path) -> None:
    add_pci(sysfs, "pci0000:00/0000:00:1c.0", "0x060400", "0x8086", "pcieport", 0)
    device = add_pci(sysfs, "pci0000:00/0000:00:1c.0/0000:02:00.0", "0x020000", "0x14e4", "bnxt_en", 0)
    add_interface(sysfs, device, "eth0")


def _add_virtual_function(sysfs: Path) -> None:
    physical = (sysfs / "bus/pci/devices" / nic_address(0)).resolve()
    path = physical.relative_to(sysfs.resolve() / "devices").with_name(nic_address(0)[:-1] + "2")
    device = add_pci(sysfs, str(path), "0x020700", driver="mlx5_core", numa_node=0)
    link(device / "physfn", physical)
    add_rdma(sysfs, device, "mlx5_vf0", port_files(counters_of(20), hardware_counters_of(20)))


def _add_efa(sysfs: Path) -> None:
    device = add_pci(sysfs, "pci0000:00/0000:00:1d.0", "0x020000", "0x1d0f", "efa", -1)
    hardware = {name: 7000 + place for place, name in enumerate(EFA_COUNTERS)}
    files = port_files({}, hardware, link_layer="Unspecified", rate="100 Gb/sec (4X EDR)")
    own = {"hw_counters/no_completion_cmds": 3, "hw_counters/lifespan": 12, "fw_ver": "0.0.0.0"}
    add_rdma(sysfs, device, "efa_0", {**files, **own})


def _net_dev(ports: int) -> str:
    lines = (PROC / "net/dev").read_text().splitlines()[:4]  # the head, lo and eth0
    for index in range(ports):
        received, sent = 100_000 * (index + 1), 200_000 * (index + 1)
        zeros = "0 0 0 0 0 0"
        lines.append(f"   ib{index}: {received} {100 + index} {zeros} {sent} {200 + index} {zeros}")
    return "\n".join(lines) + "\n"
