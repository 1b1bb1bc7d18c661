"""PCIe, NVLink and the NVLink fabric."""

from __future__ import annotations

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading.links import LinkTotal, fabric_faults
from rankwatch_agent.sources.gpu.reading.node import NodeReader
from support.gpu.nvml_node import C2C_LINKS, blackwell_node, connect_to_grace
from support.gpu.reading import Node, family, node_values, series, values_of

LINKS = 18
TRANSMIT = ("nvlink_bytes_total", "transmit")


@pytest.mark.process
def test_pcie_link(node: Node) -> None:
    """A degraded link shows against its maximum."""
    node.driver.set(1, "pcie.generation", 1)
    node.driver.set(1, "pcie.width", 8)
    assert family(node.values(1), "pcie_generation", "pcie_width") == {
        ("pcie_generation",): 1,
        ("pcie_generation_max",): 5,
        ("pcie_width",): 8,
        ("pcie_width_max",): 16,
    }


def test_nvlink_goes_down(node: Node) -> None:
    """The link is not read any more, and its last value stays in the sum."""
    before = node.values(0)[TRANSMIT]
    node.driver.set(0, "nvlinks.5", {**node.driver.node["gpus"][0]["nvlinks"][5], "active": 0})
    node.driver.set(0, "fields.138", [None if link == 5 else 10**10 for link in range(LINKS)])
    values = node.values(0)
    assert values["nvlinks",] == LINKS
    assert values["nvlinks_active",] == LINKS - 1
    assert values[TRANSMIT] == 1024 * (17 * 10**10 + 1_000_000_000 + 5_000)
    assert values[TRANSMIT] > before


def test_nvlink_counter_reset() -> None:
    """The sum goes on from its last value, so a rate sees only what came after the reset."""
    total = LinkTotal()
    for link, count in ((0, 1000.0), (1, 50.0), (0, 10.0)):
        total.update(link, count)
    assert total.sum() == 1060.0


def test_nvlink_5(node: Node) -> None:
    """Its fields count bytes, and other errors."""
    fake = blackwell_node(1)
    fake["driver"]["version"] = "580.95.05"
    node.driver.update(lambda node: (node.clear(), node.update(fake)))
    reading = node.read()
    links = sum(range(LINKS))
    expected = {
        **series("nvlink_bytes_total", transmit=2000, receive=4000),
        **series("nvlink_errors_total", malformed_packet=6000, buffer_overrun=7000, effective=19000),
        **series("nvlink_errors_total", symbol=21000, link_recovery_failed=14000),
    }
    assert family(values_of(reading.gpus[0]), "nvlink_bytes", "nvlink_errors") == {
        key: LINKS * value + links for key, value in expected.items()
    }
    assert {"nvlink_bytes", "nvlink_errors"} <= set(reading.gpus[0].supported)


@pytest.mark.parametrize("first", [False, True], ids=["from the start", "by a mode of the GPU"])
def test_no_nvlink(node: Node, first: bool) -> None:
    """The feature is unsupported, which is no fault of a link, and nothing is logged."""
    if first:
        node.read()
    node.driver.unsupport("nvmlDeviceGetNvLinkState", 2)
    reading = node.read()
    gpu = reading.gpus[2]
    assert family(values_of(gpu), "nvlink") == {}
    assert "nvlink" in gpu.unsupported
    assert node_values(reading)["supported", gpu.model, "nvlink"] == 0.0
    assert reading.warnings == ()


def test_unreadable_nvlink_counts_as_down(node: Node) -> None:
    """A warning is logged, and the ports stay known when they are probed again."""
    node.read()
    node.driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_UNKNOWN, 0)
    reading = node.read()
    assert values_of(reading.gpus[0])["nvlinks_active",] == 0.0
    assert {node.values(0)["nvlinks",] for _ in range(60)} == {LINKS}  # also when ports are looked for again
    assert reading.warnings == (f"GPU {reading.gpus[0].uuid}: could not read nvlink: Unknown Error",)


def test_nvlink_unreadable_from_the_start(node: Node) -> None:
    """There is no series until the ports can be read."""
    node.driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_UNKNOWN, 0)
    assert family(node.values(0), "nvlink") == {}
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert node.values(0)["nvlinks",] == LINKS


@pytest.fixture
def grace(node: Node) -> Node:
    """GPU 0 is beside a Grace CPU, after the reading that counts the links."""
    node.driver.update(lambda fake: connect_to_grace(fake["gpus"][0]))
    node.read()
    return node


def test_chip_to_chip_links(grace: Node) -> None:
    """Sums over the links; megabytes per second become bytes."""
    assert family(grace.values(0), "c2c") == {
        ("c2c_links",): C2C_LINKS,
        ("c2c_links_active",): C2C_LINKS,
        ("c2c_links_low_power",): 0,
        ("c2c_bandwidth_bytes",): C2C_LINKS * 44_712e6,
        **series("c2c_errors_total", crc=C2C_LINKS * 5, replay=C2C_LINKS * 3, replay_back_to_back=0),
    }


def test_chip_to_chip_link_goes_down(grace: Node) -> None:
    """Its errors stay in the sum, and a counter that starts again does not make the sum fall."""
    grace.values(0)
    for field, value in (("171.3", 0), ("172.3", None), ("231.3", None), ("231.4", 1)):
        grace.driver.set(0, f"fields.{field}", value)
    values = family(grace.values(0), "c2c")
    assert values["c2c_links_active",] == C2C_LINKS - 1
    assert values["c2c_bandwidth_bytes",] == (C2C_LINKS - 1) * 44_712e6
    assert values["c2c_errors_total", "crc"] == C2C_LINKS * 5 + 1


def test_driver_without_chip_to_chip_errors(grace: Node) -> None:
    """Drivers that lack the newer fields have the older ones, and no series of zeros."""
    for field in (231, 232, 233, 234):
        grace.driver.fail(field, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    reading = grace.read()
    names = {key[0] for key in family(values_of(reading.gpus[0]), "c2c")}
    assert names == {"c2c_links", "c2c_links_active", "c2c_bandwidth_bytes"}
    assert "c2c_errors" in reading.gpus[0].unsupported
    assert reading.warnings == ()


@pytest.mark.parametrize("count", [None, 0, 0xFFFFFFFF])
def test_no_chip_to_chip_links(grace: Node, count: int | None) -> None:
    """No series beside an x86 CPU, whatever the driver answers, and also after there were some."""
    grace.driver.set(0, "fields.170", count)
    for _ in range(2):
        reading = grace.read()
        assert family(values_of(reading.gpus[0]), "c2c") == {}
        assert node_values(reading)["supported", reading.gpus[0].model, "c2c"] == 0.0


@pytest.mark.parametrize(
    ("state", "status", "name"),
    [(1, 0, "not_started"), (2, 0, "in_progress"), (3, 0, "completed"), (3, 999, "failed")],
)
def test_fabric_state(node: Node, state: int, status: int, name: str) -> None:
    """A completed probe with an error has failed."""
    node.driver.set(0, "fabric.state", state)
    node.driver.set(0, "fabric.status", status)
    assert family(node.values(0), "fabric_state") == {("fabric_state", name): 1}


def test_fabric_of_an_old_driver(node: Node) -> None:
    """It knows the state of the probe, but not the health."""
    node.driver.fail("nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert family(node.values(0), "fabric") == {("fabric_state", "completed"): 1}


@pytest.mark.parametrize(
    ("state", "unsupported"), [(0, True), (77, False)], ids=["none", "of a newer driver"]
)
def test_no_fabric(node: Node, state: int, unsupported: bool) -> None:
    """A state that we do not know is counted as rejected."""
    node.driver.set(0, "fabric.state", state)
    reading = node.read()
    assert family(values_of(reading.gpus[0]), "fabric_state") == {}
    assert ("fabric" in reading.gpus[0].unsupported) == unsupported
    assert node_values(reading).get(("readings_rejected_total", "fabric"), 0) == (not unsupported)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (0x0, {}),
        (0xFFFFFFFF, {}),
        (0b01, {"degraded_bandwidth": True}),
        (0b10, {"degraded_bandwidth": False}),
        (0b01 << 4, {"route_unhealthy": True}),
        (1 << 8, {"incorrect_configuration": False}),
        (5 << 8, {"incorrect_configuration": True}),
        (0b10 << 12, {"no_partition": True}),
        (0b01 << 12, {"no_partition": False}),
        (0b10 << 14, {"fabric_manager_disconnected": True}),
    ],
)
def test_fabric_health_mask(mask: int, said: dict[str, bool]) -> None:
    """Each reason has two or four bits: unknown, healthy or faulty."""
    assert dict(fabric_faults(mask)) == said


def test_fabric_faults(node: Node) -> None:
    """A fault that the driver denies is 0."""
    node.driver.set(6, "fabric.health_mask", 0b01 | 0b10 << 2)
    expected = series("fabric_degraded", degraded_bandwidth=1, route_recovery=0)
    assert family(node.values(6), "fabric_degraded") == expected


def test_single_links(node: Node) -> None:
    """Off by default, because 18 links have 200 series. A link that is down keeps its counters."""
    assert family(node.values(0), "nvlink_link") == {}
    reader = NodeReader(nvlink_per_link=True, event_wait_milliseconds=20)
    try:
        reader.read()
        node.driver.set(0, "nvlinks.7.active", 0)
        answer = reader.read()
        assert answer.reading
        values = values_of(answer.reading.gpus[0])
    finally:
        reader.close()
    assert values["nvlink_link_up", "7"] == 0.0
    assert values["nvlink_link_up", "8"] == 1.0
    for kind in ("transmit", "receive"):
        links = [values["nvlink_link_bytes_total", str(link), kind] for link in range(LINKS)]
        assert sum(links) == values["nvlink_bytes_total", kind]
    assert values["nvlink_link_errors_total", "7", "recovery"] == 17.0
    assert len(family(values, "nvlink_link")) == LINKS * (1 + 2 + 3)
