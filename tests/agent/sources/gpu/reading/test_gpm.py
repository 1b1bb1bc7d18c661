"""Activity between two readings, and the suspicion that it cannot be true."""

from __future__ import annotations

import time

from rankwatch_agent.sources.gpu.reading.activity import MIN_SECONDS_APART
from rankwatch_agent.sources.gpu.reading.node import NodeReader
from support.agent.process import ManualClock, until
from support.gpu.nvml import FakeDriver
from support.gpu.reading import Node, values_of

UNITS = ("graphics", "sm", "sm_occupancy", "integer", "tensor", "dram", "fp64", "fp32", "fp16")


def test_activity_needs_two_readings(node: Node) -> None:
    """The first one only keeps a sample; nothing sleeps for a second."""
    assert not [key for key in node.values(1) if key[0] in ("activity_ratio", "pcie_throughput_bytes")]
    values = node.values_with_activity(1)
    assert {key[1] for key in values if key[0] == "activity_ratio"} == set(UNITS)
    assert values["activity_ratio", "sm"] == (40 + 2 + 1 / 8) / 100
    assert values["activity_ratio", "tensor"] == (40 + 5 + 1 / 8) / 100
    assert values["activity_ratio", "dram"] == (40 + 10 + 1 / 8) / 100
    assert values["pcie_throughput_bytes", "transmit"] == 1001 * (1 << 20)
    assert values["pcie_throughput_bytes", "receive"] == 2001 * (1 << 20)


def test_a_reading_right_after_another_keeps_the_older_sample(fake_driver: FakeDriver) -> None:
    """Samples less than 100 ms apart are of no use; what follows is measured from the older one."""
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


def test_full_load_is_one(node: Node) -> None:
    """GPM computes a hair more than 100 % now and then; far more is no measurement."""
    node.driver.set(0, "gpm.metrics.2", 100.4)
    node.driver.set(0, "gpm.metrics.5", 250.0)
    values = node.values_with_activity(0)
    assert values["activity_ratio", "sm"] == 1.0
    assert ("activity_ratio", "tensor") not in values


def test_a_unit_that_gpm_does_not_know_costs_only_itself(node: Node) -> None:
    """It has no series."""
    node.driver.set(0, "gpm.metrics.11", None)
    values = node.values_with_activity(0)
    assert ("activity_ratio", "fp64") not in values
    assert ("activity_ratio", "fp32") in values


def test_a_gpu_without_gpm_is_asked_for_its_pcie_throughput(node: Node) -> None:
    """The call that takes 20 ms is made for no other GPU."""
    node.driver.set(0, "gpm.supported", 0)
    reading = node.read()
    values = values_of(reading.gpus[0])
    assert values["pcie_throughput_bytes", "transmit"] == 210_000 * 1000
    assert values["pcie_throughput_bytes", "receive"] == 310_000 * 1000
    assert "gpm" in reading.gpus[0].unsupported
    assert "pcie_throughput" not in (*reading.gpus[1].supported, *reading.gpus[1].unsupported)


def still(node: Node, *, tensor: float = 0.0) -> None:
    """A GPU that claims full utilisation while its units do nothing."""
    node.driver.set(0, "utilization.gpu", 100)
    for number in (2, 10):
        node.driver.set(0, f"gpm.metrics.{number}", 0.0)
    node.driver.set(0, "gpm.metrics.5", tensor)


def test_full_utilisation_without_any_activity_is_suspect_the_second_time(node: Node) -> None:
    """Once may be a kernel that only begins."""
    still(node)
    found: list[float] = []

    def twice() -> bool:
        value = node.values(0).get(("counters_suspect",))
        found.extend([] if value is None else [value])
        return len(found) == 3

    until(twice, "three readings with activity")
    assert found == [0.0, 1.0, 1.0]


def test_a_little_activity_is_not_suspect(node: Node) -> None:
    """Exactly 0 is the mark of counters that nobody feeds."""
    still(node, tensor=0.01)
    for _ in range(3):
        assert node.values_with_activity(0)["counters_suspect",] == 0.0


def test_nothing_is_suspected_where_activity_is_not_known(node: Node) -> None:
    """No series rather than 0."""
    node.driver.set(0, "gpm.supported", 0)
    node.driver.set(0, "utilization.gpu", 100)
    assert [("counters_suspect",) in node.values(0) for _ in range(3)] == [False] * 3
