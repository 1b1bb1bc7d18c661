"""Places on the PCI bus, and the GPUs that it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.pci import PciDevice, PciGpus, driver_of, is_address, is_virtual_function, locate
from support.sources.node_tree import add_pci, build_node, link, write


def test_locate(tmp_path: Path) -> None:
    """From the host bridge down. The bridges of one switch are its upstream and its downstream port."""
    sysfs = build_node(tmp_path).sysfs
    assert locate(str(sysfs / "class/infiniband/mlx5_1/device")) == PciDevice(
        "0000:29:00.0", ("pci0000:16", "0000:16:01.0", "0000:17:00.0", "0000:18:02.0"), 0
    )
    assert locate(str(sysfs / "class/net/ib1/device")) == locate(str(sysfs / "bus/pci/devices/0000:29:00.0"))


def test_device_on_another_bus(tmp_path: Path) -> None:
    """virtio and the subfunctions of mlx5 give their PCI function."""
    device = add_pci(tmp_path, "pci0000:00/0000:00:05.0", "0x020000")
    (device / "virtio2").mkdir()
    link(tmp_path / "class/net/eth0/device", device / "virtio2")
    assert locate(str(tmp_path / "class/net/eth0/device")) == PciDevice("0000:00:05.0", ("pci0000:00",), None)


@pytest.mark.parametrize("text", ["-1", "", "many", None])
def test_unknown_numa_node(tmp_path: Path, text: str | None) -> None:
    """Firmware that does not report it gives -1."""
    device = add_pci(tmp_path, "pci0000:00/0000:00:05.0", "0x020000")
    (device / "numa_node").write_text(text) if text is not None else (device / "numa_node").unlink()
    assert locate(str(device)) == PciDevice("0000:00:05.0", ("pci0000:00",), None)


def test_device_off_the_pci_bus(tmp_path: Path) -> None:
    """A virtual interface, a broken link, a link to itself, a name with a NUL."""
    virtual = tmp_path / "devices/virtual/net/bond0"
    virtual.mkdir(parents=True)
    (tmp_path / "broken").symlink_to(tmp_path / "pci0000:00/0000:00:05.0")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (str(virtual), str(tmp_path / "broken"), str(tmp_path / "loop"), "a\0b"):
        assert locate(path) is None


def test_is_address() -> None:
    """Domains may have more than four digits. A path is no address."""
    assert is_address("0000:3b:00.0")
    assert is_address("10000:01:00.7")
    assert not any(map(is_address, ("3b:00.0", "0000:3b:00.0/..", "../etc", "0000:3B:00.0", "")))


def test_driver_and_virtual_function(tmp_path: Path) -> None:
    """A device without a driver has an empty name."""
    sysfs = build_node(tmp_path).sysfs
    assert driver_of(str(sysfs / "class/net/eth0/device")) == "bnxt_en"
    assert driver_of(str(sysfs / "class/net")) == ""
    assert is_virtual_function(str(sysfs / "class/infiniband/mlx5_vf0/device"))
    assert not is_virtual_function(str(sysfs / "class/infiniband/mlx5_0/device"))


GPU = "0000:1b:00.0"


def device(sysfs: Path, address: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> Path:
    """A PCI device of this vendor and class."""
    path = sysfs / "bus/pci/devices" / address
    write(path, {"vendor": vendor, "class": kind})
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
