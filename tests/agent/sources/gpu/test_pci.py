"""The GPUs that the PCI bus shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.pci import PciGpus

GPU = "0000:1b:00.0"


def device(sysfs: Path, address: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    """A PCI device of this vendor and class."""
    path = sysfs / "bus/pci/devices" / address
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "class").write_text(f"{kind}\n")
    return path


def test_which_devices_are_gpus(tmp_path: Path) -> None:
    """No NVSwitches, audio functions, other vendors' cards or virtual functions."""
    device(tmp_path, GPU)
    device(tmp_path, "0000:1c:00.0", kind="0x030000")
    device(tmp_path, "0000:05:00.0", kind="0x068000")
    device(tmp_path, "0000:1c:00.1", kind="0x040300")
    device(tmp_path, "0000:06:00.0", vendor="0x1a03", kind="0x030000")
    (device(tmp_path, "0000:1b:00.4") / "physfn").mkdir()
    (tmp_path / "bus/pci/devices/0000:07:00.0").mkdir()
    assert PciGpus(tmp_path).expected() == {GPU, "0000:1c:00.0"}


def test_gpu_leaves_the_bus(tmp_path: Path) -> None:
    """It is still expected: otherwise the worst fault would look like a smaller node."""
    path = device(tmp_path, GPU)
    gpus = PciGpus(tmp_path)
    gpus.expected()
    shutil.rmtree(path)
    assert gpus.expected() == {GPU}


def test_gpu_in_a_virtual_machine(tmp_path: Path) -> None:
    """It is bound to vfio-pci meanwhile and is not expected until it comes back."""
    path, gpus = device(tmp_path, GPU), PciGpus(tmp_path)
    (path / "driver").symlink_to("../../drivers/vfio-pci")
    assert gpus.expected() == frozenset()
    (path / "driver").unlink()
    (path / "driver").symlink_to("../../drivers/nvidia")
    assert gpus.expected() == {GPU}


def test_device_appears(tmp_path: Path) -> None:
    """Hot-plugged, or at the address of a former device."""
    path = device(tmp_path, GPU, vendor="0x8086")
    gpus = PciGpus(tmp_path)
    assert gpus.expected() == frozenset()
    shutil.rmtree(path)
    gpus.expected()
    device(tmp_path, GPU)
    assert gpus.expected() == {GPU}


def test_no_pci_bus(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable):
        PciGpus(tmp_path).expected()


def test_unreadable_device(tmp_path: Path) -> None:
    """It is read again: a shortage of file descriptors must not cost a node its GPUs for good."""
    vendor = device(tmp_path, GPU) / "vendor"
    vendor.rename(tmp_path / "vendor")
    vendor.mkdir()
    gpus = PciGpus(tmp_path)
    assert gpus.expected() == frozenset()
    vendor.rmdir()
    (tmp_path / "vendor").rename(vendor)
    assert gpus.expected() == {GPU}
