"""The collectors `gpu` and `gpu_driver` with real worker processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.collector import MODULES, GpuCollector, GpuDriverCollector
from rankwatch_agent.sources.gpu.driver import Driver
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.pci import PciGpus
from rankwatch_agent.sources.xid import XidCounter, load_table
from support.agent.process import values
from support.gpu import worker as fake_worker
from support.gpu.worker import UUID

pytestmark = pytest.mark.process

SCHEDULE = Schedule(1.0, 20.0)


class Node(NamedTuple):
    """Both collectors of a node, and what its worker does."""

    gpu: GpuCollector
    driver: GpuDriverCollector
    inventory: GpuInventory
    act: Path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One GPU on the bus."""
    bus, act = tmp_path / "bus/pci/devices/0000:1b:00.0", tmp_path / "act"
    bus.mkdir(parents=True)
    (bus / "vendor").write_text("0x10de\n")
    (bus / "class").write_text("0x030200\n")
    act.write_text("answer")
    driver, pci, inventory = Driver(fake_worker.command(act)), PciGpus(tmp_path), GpuInventory()
    xids, library = XidCounter(load_table(None)), tmp_path / "libnvidia-ml.so.1"
    common = {"driver": driver, "pci": pci, "schedule": SCHEDULE}
    gpu = GpuCollector(inventory=inventory, xids=xids, library=library, **common)
    yield Node(gpu, GpuDriverCollector(sysfs=tmp_path, **common), inventory, act)
    driver.close()


def counted(node: Node) -> tuple[float, float]:
    """GPUs expected and visible."""
    found = values([node.driver.collect()])
    return found["rankwatch_gpus_expected",], found["rankwatch_gpus_visible",]


def test_log_of_a_lost_gpu(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """One line when it is lost and one when it is back, each with everything that names it."""
    caplog.set_level(logging.INFO)
    for act in ("answer", "lost", "lost", "answer"):
        node.act.write_text(act)
        node.gpu.collect()
    names = f"GPU {UUID} (index 0, PCI 0000:1b:00.0)"
    lines = [(each.levelname, each.getMessage()) for each in caplog.records if hasattr(each, "event")]
    assert lines == [("ERROR", f"{names} is lost: GPU is lost"), ("INFO", f"{names} is back")]


def test_log_of_an_xid(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Where the kernel's log cannot be read, this line is the only one."""
    node.gpu.collect()
    node.act.write_text("xid 79")
    node.gpu.collect()
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "xid"]
    assert record.getMessage() == (
        f"XID 79 on GPU {UUID} (index 0, PCI 0000:1b:00.0): GPU has fallen off the bus; severity critical, "
        "action reboot_node; from NVML"
    )


def test_gpu_unknown_to_a_new_worker(node: Node) -> None:
    """A hang often takes GPU and worker together, so the agent remembers the GPUs."""
    node.gpu.collect()
    node.act.write_text("empty")
    assert values([node.gpu.collect()]) == {("rankwatch_gpu_up", UUID): 0}
    node.act.write_text("answer")
    assert values([node.gpu.collect()])["rankwatch_gpu_up", UUID] == 1


def test_all_gpus_lost(node: Node) -> None:
    """The node must not look like one without GPUs."""
    node.act.write_text("all lost")
    assert values([node.gpu.collect()]) == {("rankwatch_gpu_up", UUID): 0}
    assert counted(node) == (1, 0)


def test_driver_fails(node: Node) -> None:
    """The values are gone, but the driver's state and the expected GPUs are exported."""
    node.gpu.collect()
    node.act.write_text("fail")
    with pytest.raises(CollectError, match="the driver fails"):
        node.gpu.collect()
    assert node.inventory.exported() == frozenset()
    assert values([node.driver.collect()]) == {
        ("rankwatch_gpus_expected",): 1,
        ("rankwatch_gpus_visible",): 0,
        ("rankwatch_gpu_driver_state", "unavailable"): 1,
        ("rankwatch_gpu_driver_unresponsive_total",): 0,
        **{("rankwatch_nvidia_module_loaded", name): 0 for name in MODULES},
    }


def test_no_gpu(node: Node, tmp_path: Path) -> None:
    """No worker is started, and nothing is exported about a driver that is not needed."""
    (tmp_path / "bus/pci/devices/0000:1b:00.0/vendor").write_text("0x8086\n")
    with pytest.raises(NotApplicable, match="no NVIDIA GPU"):
        node.gpu.collect()
    assert counted(node) == (0, 0)
    assert len(node.driver.collect().series) == 2


def test_named_library_without_a_gpu_on_the_bus(node: Node, tmp_path: Path) -> None:
    """WSL and some virtual machines have a driver and no PCI device. The operator's word counts."""
    (tmp_path / "bus/pci/devices/0000:1b:00.0/vendor").write_text("0x8086\n")
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert values([node.gpu.collect()])["rankwatch_gpu_power_watts", UUID] == 300
    assert counted(node) == (1, 1)
    node.act.write_text("lost")
    node.gpu.collect()
    assert counted(node) == (1, 0)
    node.act.write_text("absent")
    with pytest.raises(NotApplicable, match="no driver"):
        node.gpu.collect()


def test_kernel_modules(node: Node, tmp_path: Path) -> None:
    """One that is loaded under its older name counts; one that is still being loaded does not."""
    states = {"nvidia": "live", "nv_peer_mem": "live", "nvidia_uvm": "coming"}
    for name, state in states.items():
        (tmp_path / "module" / name).mkdir(parents=True)
        (tmp_path / "module" / name / "initstate").write_text(f"{state}\n")
    found = values([node.driver.collect()])
    loaded = {key[1]: value for key, value in found.items() if "module" in key[0]}
    assert loaded == {"nvidia": 1, "nvidia_uvm": 0, "nvidia_peermem": 1, "gdrdrv": 0}
