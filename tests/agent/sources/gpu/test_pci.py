"""The GPUs that the PCI bus says should be here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.gpu.pci import PciGpus

GPU = "0000:1b:00.0"


def device(sysfs: Path, address: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    """A PCI device of this vendor and class."""
    path = sysfs / "bus/pci/devices" / address
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "class").write_text(f"{kind}\n")
    return path


def test_only_nvidia_display_controllers_are_gpus(tmp_path: Path) -> None:
    """Not its NVSwitches and audio functions, not others' cards, no virtual functions."""
    device(tmp_path, GPU)
    device(tmp_path, "0000:1c:00.0", kind="0x030000")
    device(tmp_path, "0000:05:00.0", kind="0x068000")
    device(tmp_path, "0000:1c:00.1", kind="0x040300")
    device(tmp_path, "0000:06:00.0", vendor="0x1a03", kind="0x030000")
    (device(tmp_path, "0000:1b:00.4") / "physfn").mkdir()
    (tmp_path / "bus/pci/devices/0000:07:00.0").mkdir()
    assert PciGpus(tmp_path).expected() == {GPU, "0000:1c:00.0"}


def test_a_gpu_that_leaves_the_bus_is_still_expected(tmp_path: Path) -> None:
    """Else the worst fault would look like a smaller node."""
    path = device(tmp_path, GPU)
    gpus = PciGpus(tmp_path)
    gpus.expected()
    shutil.rmtree(path)
    assert gpus.expected() == {GPU}


def test_a_gpu_handed_to_a_virtual_machine_is_not_expected_until_it_comes_back(tmp_path: Path) -> None:
    """It is bound to vfio-pci meanwhile."""
    path, gpus = device(tmp_path, GPU), PciGpus(tmp_path)
    (path / "driver").symlink_to("../../drivers/vfio-pci")
    assert gpus.expected() == frozenset()
    (path / "driver").unlink()
    (path / "driver").symlink_to("../../drivers/nvidia")
    assert gpus.expected() == {GPU}


def test_a_device_that_appears_later_is_seen(tmp_path: Path) -> None:
    """Hot-plugged, or its address given to another device."""
    path = device(tmp_path, GPU, vendor="0x8086")
    gpus = PciGpus(tmp_path)
    assert gpus.expected() == frozenset()
    shutil.rmtree(path)
    gpus.expected()
    device(tmp_path, GPU)
    assert gpus.expected() == {GPU}


def test_a_machine_without_a_pci_bus_is_not_applicable(tmp_path: Path) -> None:
    """There is nothing to expect."""
    with pytest.raises(NotApplicable):
        PciGpus(tmp_path).expected()


def test_a_device_that_does_not_tell_what_it_is_is_asked_again(tmp_path: Path) -> None:
    """Once there are file descriptors again, for instance: a node must not lose its GPUs for good by that."""
    vendor = device(tmp_path, GPU) / "vendor"
    vendor.rename(tmp_path / "vendor")
    vendor.mkdir()
    gpus = PciGpus(tmp_path)
    assert gpus.expected() == frozenset()
    vendor.rmdir()
    (tmp_path / "vendor").rename(vendor)
    assert gpus.expected() == {GPU}
