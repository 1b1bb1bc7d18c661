"""The GPUs that the PCI bus shows. This needs no driver, so it works after the driver has died."""

from __future__ import annotations

import os
from pathlib import Path

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.kernel_files import read_kernel_file

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""VGA-compatible and 3D controller: the classes of graphics cards and of data-centre GPUs."""
_PASSED_THROUGH = "vfio-pci"
"""Driver of a device that a virtual machine uses; the node does not expect that GPU."""


class PciGpus:
    """NVIDIA GPUs in /sys/bus/pci/devices. One that has vanished is still expected."""

    def __init__(self, sysfs: Path) -> None:
        self._devices = sysfs / "bus" / "pci" / "devices"
        self._seen: set[str] = set()
        self._others: set[str] = set()

    def expected(self) -> frozenset[str]:
        """PCI addresses (0000:3b:00.0); raises NotApplicable without a PCI bus, CollectError."""
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
        return frozenset(address for address in tuple(self._seen) if not self._passed_through(address))

    @property
    def shows_gpus(self) -> bool:
        """Whether a GPU was ever on the bus."""
        return bool(self._seen)

    def _is_gpu(self, address: str) -> bool | None:
        """None where the files of the device cannot be read; they are read again next time."""
        device = self._devices / address
        vendor, kind = _text(device / "vendor"), _text(device / "class")
        if vendor is None or kind is None:
            return None
        # A virtual function belongs to a card that is counted itself.
        return vendor == _NVIDIA and kind.startswith(_DISPLAY) and not os.path.lexists(device / "physfn")

    def _passed_through(self, address: str) -> bool:
        try:
            return (self._devices / address / "driver").readlink().name == _PASSED_THROUGH
        except OSError:
            return False


def _text(path: Path) -> str | None:
    try:
        return read_kernel_file(path).strip().lower()
    except (NotApplicable, CollectError):
        return None
