"""The GPUs that should be here, by the PCI bus: known without the driver, and after it has died."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.collection import CollectError, NotApplicable

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")
"""VGA-compatible and 3D controller: the classes of graphics cards and of data-centre GPUs."""
_PASSED_THROUGH = "vfio-pci"
"""Driver of a device that was handed to a virtual machine: not ours to expect."""


class PciGpus:
    """NVIDIA GPUs below /sys/bus/pci/devices. One that was there and vanished is still expected."""

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
            (self._seen if self._is_gpu(address) else self._others).add(address)
        return frozenset(address for address in self._seen if not self._passed_through(address))

    def _is_gpu(self, address: str) -> bool:
        device = self._devices / address
        return (
            _text(device / "vendor") == _NVIDIA
            and _text(device / "class").startswith(_DISPLAY)
            and not (device / "physfn").exists()  # a virtual function of a card that is counted itself
        )

    def _passed_through(self, address: str) -> bool:
        try:
            return (self._devices / address / "driver").readlink().name == _PASSED_THROUGH
        except OSError:
            return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip().lower()
    except OSError:
        return ""
