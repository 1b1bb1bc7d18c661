"""All GPUs of a node: complete, lost, back again, and a driver that comes and goes."""

from __future__ import annotations

import pynvml
import pytest

from rankwatch.conventions.metrics import metric, section
from rankwatch_agent.sources.gpu.protocol import Failure, Reading, Sample
from support.agent.process import until
from support.gpu.nvml_node import connect_to_grace, split_into_instances
from support.gpu.reading import Node, values_of

OF_THE_AGENT = {
    "rankwatch_gpus_expected",
    "rankwatch_gpus_visible",
    "rankwatch_gpu_driver_state",
    "rankwatch_gpu_driver_unresponsive_total",
    "rankwatch_nvidia_module_loaded",
}
"""What the agent itself knows, also while the driver does not answer."""


def test_every_declared_metric_is_read(node: Node) -> None:
    """With the declared labels, so that nothing is missing on either side."""
    node.driver.update(lambda fake: split_into_instances(fake["gpus"][7]))
    node.driver.update(lambda fake: connect_to_grace(fake["gpus"][6]))
    node.driver.set(5, "power.usage_mw", 4294967295)
    node.driver.update(lambda fake: fake["gpus"][5]["fields"].update({"29": 1, "30": 1, "31": 0}))
    node.driver.update(lambda fake: fake["gpus"][4].update(fans=[30]))
    declared = {each.name for each in section("gpu") if "nvlink_link" not in each.name} - OF_THE_AGENT
    found: set[str] = set()

    def complete() -> bool:
        samples = all_samples(node.read())
        for sample in samples:
            assert len(sample.labels) == len(metric(sample.metric).labels), sample
        found.clear()
        found.update(sample.metric for sample in samples)
        return found >= declared

    until(complete, "every metric is there")
    assert found == declared


def all_samples(reading: Reading) -> list[Sample]:
    return [*reading.samples, *(sample for gpu in reading.gpus for sample in gpu.samples)]


def test_identity(node: Node) -> None:
    """The minor number is not the index, and the address has the kernel's form."""
    gpu = node.read().gpus[2]
    fake = node.driver.node["gpus"][2]
    assert (gpu.uuid, gpu.index, gpu.minor_number) == (fake["uuid"], 2, 6)
    assert (gpu.pci_bus_id, gpu.model, gpu.up) == ("0000:3b:00.0", "NVIDIA H100 80GB HBM3", True)


def test_no_serial_number(node: Node) -> None:
    """The label is empty."""
    node.driver.unsupport("nvmlDeviceGetSerial", 0)
    gpu = node.read().gpus[0]
    assert values_of(gpu)["info", "0", gpu.pci_bus_id, gpu.model, "hopper", ""] == 1.0


def test_lost_gpu(node: Node) -> None:
    """It keeps its identity alone, although the driver answers not even for its UUID; the others go on."""
    before = node.read().gpus[3]
    node.driver.lose(3)
    reading = node.read()
    lost = reading.gpus[3]
    assert (lost.uuid, lost.pci_bus_id) == (before.uuid, before.pci_bus_id)
    assert (lost.up, lost.lost_reason) == (False, "GPU is lost")
    assert [(key[0], value) for key, value in values_of(lost).items()] == [("up", 0), ("info", 1)]
    assert [gpu.up for gpu in reading.gpus] == [True] * 3 + [False] + [True] * 4
    assert len(values_of(reading.gpus[4])) > 50


def test_gpu_vanishes(node: Node) -> None:
    """The count is smaller and the other GPUs have new numbers."""
    uuids = [gpu.uuid for gpu in node.read().gpus]
    taken: list[dict[str, object]] = []
    node.driver.update(lambda fake: taken.append(fake["gpus"].pop(2)))
    node.driver.reload()
    node.fail()
    found = {gpu.uuid: gpu for gpu in node.read().gpus}
    assert set(found) == set(uuids)
    assert [uuid for uuid, gpu in found.items() if not gpu.up] == [uuids[2]]
    assert found[uuids[2]].lost_reason == "the driver does not show it any more"
    assert values_of(found[uuids[3]])["power_watts",] == 613.25


def test_gpu_appears(node: Node) -> None:
    kept: list[dict[str, object]] = []
    node.driver.update(lambda fake: kept.append(fake["gpus"].pop()))
    assert len(node.read().gpus) == 7
    node.driver.update(lambda fake: fake["gpus"].append(kept.pop()))
    assert len(node.read().gpus) == 8


def test_gpu_lost_from_the_start(node: Node) -> None:
    """It has no UUID to be exported under, so a warning is logged, and it is counted."""
    node.driver.lose(0)
    reading = node.read()
    assert (len(reading.gpus), reading.unidentified) == (7, 1)
    assert reading.warnings == ("GPU number 0 cannot be identified: GPU is lost",)


def test_no_gpu(node: Node) -> None:
    """A broken device mount must not look like a healthy idle node."""
    node.driver.update(lambda fake: fake["gpus"].clear())
    assert node.fail() == Failure(message="the driver answers but shows no GPU", absent=False, gpus=())


def test_all_gpus_lost(node: Node) -> None:
    """The driver is initialised again in each reading until one is back."""
    node.read()
    for index in range(8):
        node.driver.lose(index)
    failure = node.fail()
    assert [gpu.up for gpu in failure.gpus] == [False] * 8
    node.driver.find(2)
    assert sum(gpu.up for gpu in node.read().gpus) == 1


def test_missing_driver(node: Node) -> None:
    """nvmlInit is called again in each reading."""
    node.driver.unload()
    assert node.fail() == Failure(message="could not initialise NVML: Driver Not Loaded", absent=True)
    node.driver.load()
    assert len(node.read().gpus) == 8


def test_failing_driver(node: Node) -> None:
    """It is there and broken, so it is not absent."""
    node.driver.write_text("{ broken")
    assert not node.fail().absent


def test_reload_of_the_driver(node: Node) -> None:
    """One reading fails. NVLink counts go on."""
    before = node.values(0)
    node.driver.reload()
    assert node.fail().message == "could not count the GPUs: Uninitialized"
    assert node.values(0)["nvlink_bytes_total", "transmit"] == before["nvlink_bytes_total", "transmit"]


def test_driver_is_replaced(node: Node) -> None:
    """The library in this process stays the old one, so a new process is needed."""
    node.read()
    assert not node.reader.needs_new_process
    node.driver.reload()
    node.driver.fail("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    node.fail()
    node.fail()
    assert node.reader.needs_new_process


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetCount", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"]
)
def test_uninitialised_driver(node: Node, function: str) -> None:
    """Any call notices it, and the next reading initialises the driver again."""
    node.read()
    node.driver.fail(function, pynvml.NVML_ERROR_UNINITIALIZED)
    assert "Uninitialized" in node.fail().message
    node.driver.update(lambda fake: fake["errors"].clear())
    assert len(node.read().gpus) == 8


def test_driver_is_initialised_for_lost_gpus(node: Node) -> None:
    """In every 60th reading with a lost GPU."""
    node.read()
    node.driver.lose(1)
    for _ in range(61):
        node.read()
    assert [function for _, function in node.driver.calls].count("nvmlInit") == 2


def test_close(node: Node) -> None:
    """The driver is shut down once, and the next reading starts it again."""
    node.read()
    node.reader.close()
    node.reader.close()
    assert [function for _, function in node.driver.calls] == ["nvmlInit", "nvmlShutdown"]
    assert len(node.read().gpus) == 8
