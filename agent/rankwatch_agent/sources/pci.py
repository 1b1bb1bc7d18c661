"""Where devices sit on the PCI bus, and which GPUs it shows, through the symlinks of sysfs.

This needs no driver, so it works after the driver has died.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import parse_kernel_file, text_or_empty

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
    """Return the PCI function that a sysfs path such as /sys/class/net/eth0/device leads to.

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
    """Return PCI address and NUMA node of the device as label values, empty where unknown."""
    device = locate(link)
    if device is None:
        return "", ""
    return device.address, "" if device.numa_node is None else str(device.numa_node)


def is_address(text: str) -> bool:
    """Return True for a PCI address in the kernel's form."""
    return _ADDRESS.fullmatch(text) is not None


def is_virtual_function(device: str) -> bool:
    """Return True for an SR-IOV virtual function whose physical function this machine sees."""
    return os.path.lexists(f"{device}/physfn")


def driver_of(device: str) -> str:
    """Return the name of the device's kernel driver, empty where none is bound."""
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


_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""VGA-compatible and 3D controller: the classes of graphics cards and of data-centre GPUs."""


class PciGpus:
    """NVIDIA GPUs in /sys/bus/pci/devices. One that has vanished is still expected."""

    def __init__(self, sysfs: Path) -> None:
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._seen: set[str] = set()
        self._others: set[str] = set()

    def expected(self) -> frozenset[str]:
        """Return PCI addresses (0000:3b:00.0); raises NotApplicable without a PCI bus, CollectError."""
        try:
            present = {path.name for path in self._devices.iterdir()}
        except FileNotFoundError:
            raise NotApplicable(f"there is no PCI bus ({self._devices})") from None
        except OSError as error:
            raise CollectError(f"could not list {self._devices}: {error.strerror or error}") from None
        self._others &= present
        for address in sorted(present - self._seen - self._others):
            is_gpu = self._is_gpu(address)
            if is_gpu is not None:
                (self._seen if is_gpu else self._others).add(address)
        # Iterates over a copy: the collectors gpu and gpu_driver call this in threads of their own.
        # What a virtual machine uses is no GPU of the node.
        drivers = {address: driver_of(str(self._devices / address)) for address in tuple(self._seen)}
        return frozenset(address for address, driver in drivers.items() if driver != "vfio-pci")

    @property
    def shows_gpus(self) -> bool:
        """Whether a GPU was ever on the bus."""
        return bool(self._seen)

    def _is_gpu(self, address: str) -> bool | None:
        """Return True for a GPU; None where its files cannot be read: they are read again next time."""
        device = self._devices / address
        vendor, kind = (text_or_empty(device / name).strip().lower() for name in ("vendor", "class"))
        if not vendor or not kind:
            return None
        # A virtual function belongs to a card that is counted itself.
        return vendor == _NVIDIA and kind.startswith(_DISPLAY) and not os.path.lexists(device / "physfn")
