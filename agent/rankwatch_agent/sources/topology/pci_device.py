"""Finds the place of a device on the PCI bus through the symlinks of sysfs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import parse_kernel_file

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class PciDevice(NamedTuple):
    """A PCI function, and the bridges between it and the CPU."""

    address: str
    """In the kernel's form: 0000:3b:00.0."""
    bridges: tuple[str, ...]
    """From the host bridge (pci0000:3a) down to the bridge right above the device."""
    numa_node: int | None
    """None where the firmware does not report it."""


def locate(link: str) -> PciDevice | None:
    """Returns the PCI function that a sysfs path such as /sys/class/net/eth0/device leads to.

    A device that is not a PCI function itself (virtio, a subfunction) gives the function that it belongs to.
    Returns None where there is none, or where the link is broken.
    """
    try:
        real = os.path.realpath(link, strict=True)
    except (OSError, ValueError):
        return None
    parts = real.split("/")
    last = next((at for at in reversed(range(len(parts))) if _ADDRESS.fullmatch(parts[at])), None)
    if last is None:
        return None
    bridges = tuple(p for p in parts[:last] if _ADDRESS.fullmatch(p) or _HOST_BRIDGE.fullmatch(p))
    return PciDevice(parts[last], bridges, _numa_node("/".join(parts[: last + 1])))


def pci_labels(link: str) -> tuple[str, str]:
    """Returns PCI address and NUMA node of the device as label values, empty where unknown."""
    device = locate(link)
    if device is None:
        return "", ""
    return device.address, "" if device.numa_node is None else str(device.numa_node)


def is_address(text: str) -> bool:
    """True for a PCI address in the kernel's form."""
    return _ADDRESS.fullmatch(text) is not None


def is_virtual_function(device: str) -> bool:
    """True for an SR-IOV virtual function whose physical function this machine sees."""
    return os.path.lexists(f"{device}/physfn")


def driver_of(device: str) -> str:
    """Returns the name of the device's kernel driver, empty where none is bound."""
    try:
        return Path(device, "driver").readlink().name
    except OSError:
        return ""


def _numa_node(device: str) -> int | None:
    try:
        node = parse_kernel_file(Path(device, "numa_node"), int)
    except (NotApplicable, CollectError):
        return None
    return node if node >= 0 else None
