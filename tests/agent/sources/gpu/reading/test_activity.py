"""Utilisation, the activity of the units between two readings, and PCIe throughput."""

from __future__ import annotations

import time

from rankwatch_agent.sources.gpu.reading.activity import MIN_SECONDS_APART
from rankwatch_agent.sources.gpu.reading.node import NodeReader
from support.agent.process import ManualClock, until
from support.gpu.nvml import FakeDriver
from support.gpu.reading import Node, values_of

UNITS = ("graphics", "sm", "sm_occupancy", "integer", "tensor", "dram", "fp64", "fp32", "fp16")


def test_utilization(node: Node) -> None:
    """Per cent become shares of 1."""
    values = node.values(2)
    assert values["utilization_ratio",] == 0.92


def test_activity_needs_two_readings(node: Node) -> None:
    """The first reading only keeps a sample, because no reading may sleep."""
    assert not [key for key in node.values(1) if key[0] in ("activity_ratio", "pcie_throughput_bytes")]
    values = node.values_with_activity(1)
    assert {key[1] for key in values if key[0] == "activity_ratio"} == set(UNITS)
    assert values["activity_ratio", "sm"] == (40 + 2 + 1 / 8) / 100
    assert values["activity_ratio", "tensor"] == (40 + 5 + 1 / 8) / 100
    assert values["activity_ratio", "dram"] == (40 + 10 + 1 / 8) / 100
    assert values["pcie_throughput_bytes", "transmit"] == 1001 * (1 << 20)
    assert values["pcie_throughput_bytes", "receive"] == 2001 * (1 << 20)


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
    assert not [key for key in values_of(quick.gpus[0]) if key[0] == "activity_ratio"]
    assert quick.warnings == ()
    assert values["activity_ratio", "sm"] == 0.2  # the mean of the first and the last


def test_full_load(node: Node) -> None:
    """GPM sometimes reports slightly more than 100 %; far more is implausible."""
    node.driver.set(0, "gpm.metrics.2", 100.4)
    node.driver.set(0, "gpm.metrics.5", 250.0)
    values = node.values_with_activity(0)
    assert values["activity_ratio", "sm"] == 1.0
    assert ("activity_ratio", "tensor") not in values


def test_missing_unit(node: Node) -> None:
    """A unit that GPM lacks costs only its own series."""
    node.driver.set(0, "gpm.metrics.11", None)
    values = node.values_with_activity(0)
    assert ("activity_ratio", "fp64") not in values
    assert ("activity_ratio", "fp32") in values


def test_pcie_throughput_without_gpm(node: Node) -> None:
    """The call takes 20 ms, so it is made only for GPUs without GPM."""
    node.driver.set(0, "gpm.supported", 0)
    reading = node.read()
    values = values_of(reading.gpus[0])
    assert values["pcie_throughput_bytes", "transmit"] == 210_000 * 1000
    assert values["pcie_throughput_bytes", "receive"] == 310_000 * 1000
    assert "gpm" in reading.gpus[0].unsupported
    assert "pcie_throughput" not in (*reading.gpus[1].supported, *reading.gpus[1].unsupported)


def still(node: Node, *, tensor: float = 0.0) -> None:
    """A GPU that reports full utilisation while its units do nothing."""
    node.driver.set(0, "utilization.gpu", 100)
    for number in (2, 10):
        node.driver.set(0, f"gpm.metrics.{number}", 0.0)
    node.driver.set(0, "gpm.metrics.5", tensor)


def test_counters_suspect(node: Node) -> None:
    """In the second reading: a single one may catch a kernel that has only begun."""
    still(node)
    found: list[float] = []

    def twice() -> bool:
        value = node.values(0).get(("counters_suspect",))
        found.extend([] if value is None else [value])
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
