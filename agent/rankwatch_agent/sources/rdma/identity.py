"""What an RDMA port is, and what it is part of."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch_agent.sources.rdma.sysfs_files import SysfsFiles
from rankwatch_agent.sources.rdma.values import parse_counter, parse_word
from rankwatch_agent.sources.topology.listing import names_or_none
from rankwatch_agent.sources.topology.pci_device import driver_of, locate


class PortIdentity(NamedTuple):
    """Words about a port; each is empty where it is not known."""

    link_layer: str
    board: str
    firmware_version: str
    hca_type: str
    network_device: str
    pci_bus_id: str
    numa_node: str
    driver: str


def read_identity(files: SysfsFiles, device: str, port: str) -> PortIdentity:
    """The port `port` of the device at the path `device`."""
    place = locate(f"{device}/device")
    return PortIdentity(
        link_layer=files.value(f"{device}/ports/{port}/link_layer", parse_word) or "",
        board=files.value(f"{device}/board_id", parse_word) or "",
        firmware_version=files.value(f"{device}/fw_ver", parse_word) or "",
        hca_type=files.value(f"{device}/hca_type", parse_word) or "",
        network_device=_network_device(files, device, port),
        pci_bus_id=place.address if place is not None else "",
        numa_node=str(place.numa_node) if place is not None and place.numa_node is not None else "",
        driver=driver_of(f"{device}/device"),
    )


def _network_device(files: SysfsFiles, device: str, port: str) -> str:
    """The interface on the same PCI function whose number of a port matches; else that of the first GID.

    A device with several ports has one interface for each; `dev_port` counts from 0.
    """
    for name in names_or_none(f"{device}/device/net"):
        number = files.value(f"{device}/device/net/{name}/dev_port", parse_counter)
        if number is None or number == int(port) - 1:
            return name
    return files.value(f"{device}/ports/{port}/gid_attrs/ndevs/0", parse_word) or ""
