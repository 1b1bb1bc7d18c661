"""The activity of the units between two readings, PCIe throughput, and GPUs cut into MIG instances."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from rankwatch_agent.sources.gpu.reading.activity import MIN_SECONDS_APART, profile
from rankwatch_agent.sources.gpu.reading.node import NodeReader
from support.agent.process import ManualClock, until
from support.gpu.nvml import FakeDriver
from support.gpu.nvml_node import split_into_instances
from support.gpu.reading import Node, family, values_of

MIB = 1 << 20


def test_activity_needs_two_readings(node: Node) -> None:
    """The first reading only keeps a sample, because no reading may sleep."""
    assert family(node.values(1), "activity_ratio", "pcie_throughput_bytes") == {}


def test_samples_too_close_together(fake_driver: FakeDriver) -> None:
    """Within 100 ms the older sample stays, and the next value is measured from it."""
    clock = ManualClock()  # a slow machine takes 100 ms for a reading
    with fake_driver.in_this_process():
        node = Node(fake_driver, NodeReader(monotonic=clock, event_wait_milliseconds=20))
        fake_driver.set(0, "gpm.metrics.2", 10.0)
        node.read()
        first_taken = time.monotonic()
        clock.now += MIN_SECONDS_APART / 2
        fake_driver.set(0, "gpm.metrics.2", 90.0)
        quick = node.read()
        until(lambda: time.monotonic() - first_taken > MIN_SECONDS_APART, "the driver takes two samples")
        clock.now += MIN_SECONDS_APART
        fake_driver.set(0, "gpm.metrics.2", 30.0)
        values = node.values(0)
        node.reader.close()
    assert family(values_of(quick.gpus[0]), "activity_ratio") == {}
    assert quick.warnings == ()
    assert values["activity_ratio", "sm"] == 0.2  # the mean of the first and the last


def test_odd_activity(node: Node) -> None:
    """Slightly more than 100 % is full load, far more is implausible. A missing unit costs its own series."""
    for number, value in ((2, 100.4), (5, 250.0), (11, None)):
        node.driver.set(0, f"gpm.metrics.{number}", value)
    values = node.values_with_activity(0)
    assert values["activity_ratio", "sm"] == 1.0
    assert ("activity_ratio", "tensor") not in values
    assert ("activity_ratio", "fp64") not in values
    assert ("activity_ratio", "fp32") in values


def test_pcie_throughput_without_gpm(node: Node) -> None:
    """The call takes 20 ms, so it is made only for GPUs without GPM."""
    node.driver.set(0, "gpm.supported", 0)
    gpu, other = node.read().gpus[:2]
    values = values_of(gpu)
    assert values["pcie_throughput_bytes", "transmit"] == 210_000 * 1000
    assert values["pcie_throughput_bytes", "receive"] == 310_000 * 1000
    assert "gpm" in gpu.unsupported
    assert "pcie_throughput" not in (*other.supported, *other.unsupported)


def still(node: Node, *, tensor: float = 0.0) -> None:
    """A GPU that reports full utilisation while its units do nothing."""
    node.driver.set(0, "utilization.gpu", 100)
    for number, value in ((2, 0.0), (10, 0.0), (5, tensor)):
        node.driver.set(0, f"gpm.metrics.{number}", value)


def test_counters_suspect(node: Node) -> None:
    """In the second reading: a single one may catch a kernel that has only begun."""
    still(node)
    found: list[float] = []

    def twice() -> bool:
        found.extend(family(node.values(0), "counters_suspect").values())
        return len(found) == 3

    until(twice, "three readings with activity")
    assert found == [0.0, 1.0, 1.0]


def test_little_activity_is_not_suspect(node: Node) -> None:
    """Counters that nobody updates are exactly 0."""
    still(node, tensor=0.01)
    for _ in range(3):
        assert node.values_with_activity(0)["counters_suspect",] == 0.0


def test_unknown_activity_is_not_suspect(node: Node) -> None:
    """There is no series then, not a 0."""
    node.driver.set(0, "gpm.supported", 0)
    node.driver.set(0, "utilization.gpu", 100)
    assert [("counters_suspect",) in node.values(0) for _ in range(3)] == [False] * 3


def cut(node: Node) -> tuple[str, str]:
    """Cut GPU 0 in two; returns the UUIDs of the instances."""
    node.driver.update(lambda fake: split_into_instances(fake["gpus"][0]))
    first, second = (each["uuid"] for each in node.driver.node["gpus"][0]["mig"]["devices"])
    return first, second


def test_instances(node: Node) -> None:
    """Identity, memory and activity, labelled by GPU and instance."""
    first, second = cut(node)
    node.values_with_activity(0)
    values = node.values_with_activity(0)
    assert values["mig_info", first, "3g.40gb", "1", "0"] == 1.0
    assert values["mig_info", second, "3g.40gb", "2", "0"] == 1.0
    assert values["mig_memory_total_bytes", first] == 40_448 * MIB
    assert values["mig_memory_used_bytes", second] == 2000 * MIB
    assert values["mig_activity_ratio", first, "sm"] == 0.12
    assert values["mig_activity_ratio", second, "sm"] == 0.22


def test_whole_gpu(node: Node) -> None:
    """It has no utilisation and activity, but does not lack the feature: the mode hides it."""
    uuids = cut(node)
    gpu = node.read().gpus[0]
    values = values_of(gpu)
    assert family(values, "utilization_ratio", "activity_ratio", "counters_suspect") == {}
    assert values["memory_total_bytes",] == 81559 * MIB
    assert "utilization" not in gpu.unsupported
    assert gpu.mig_uuids == uuids


def test_compute_instances(node: Node) -> None:
    """GPM measures the GPU instance: counted for both, its activity would count twice."""
    cut(node)
    node.driver.update(
        lambda fake: fake["gpus"][0]["mig"]["devices"][1].update(gpu_instance=1, compute_instance=1)
    )
    for _ in range(2):
        assert node.values_with_activity(1)
    assert family(node.values(0), "mig_activity_ratio") == {}


@pytest.mark.parametrize(
    ("name", "slices", "expected"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (1, 1, 9984), "1g.10gb"),
        ("NVIDIA H100 80GB HBM3", (1, 1, 9984), "1g.10gb"),
        (None, (1, 2, 19968), "1c.2g.20gb"),
        (None, None, ""),
    ],
)
def test_profile(name: str | None, slices: tuple[int, int, int] | None, expected: str) -> None:
    """From the name, else from slices and memory, as nvidia-smi writes it."""
    attributes = slices and SimpleNamespace(
        computeInstanceSliceCount=slices[0], gpuInstanceSliceCount=slices[1], memorySizeMB=slices[2]
    )
    assert profile(name, attributes) == expected
