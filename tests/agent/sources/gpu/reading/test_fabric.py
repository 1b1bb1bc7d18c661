"""The NVLink fabric: state of the probe and health mask."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.gpu.reading.links import fabric_faults
from support.gpu.reading import Node, node_values, values_of


@pytest.mark.parametrize(
    ("state", "status", "name"),
    [(1, 0, "not_started"), (2, 0, "in_progress"), (3, 0, "completed"), (3, 999, "failed")],
)
def test_the_state_is_told_by_name(node: Node, state: int, status: int, name: str) -> None:
    """A probe that is over and found an error has failed."""
    node.driver.set(0, "fabric.state", state)
    node.driver.set(0, "fabric.status", status)
    assert {key: value for key, value in node.values(0).items() if key[0] == "fabric_state"} == {
        ("fabric_state", name): 1.0
    }


def test_a_gpu_without_a_fabric_has_no_series_of_it(node: Node) -> None:
    """It does not support the feature."""
    node.driver.set(0, "fabric.state", 0)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[0]) if key[0].startswith("fabric")]
    assert "fabric" in reading.gpus[0].unsupported


def test_a_state_that_is_none_is_rejected(node: Node) -> None:
    """A driver may know states that we do not."""
    node.driver.set(0, "fabric.state", 77)
    assert node_values(node.read())["readings_rejected_total", "fabric"] == 1.0


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
def test_the_health_mask_complains_denies_or_says_nothing(mask: int, said: dict[str, bool]) -> None:
    """Two or four bits for each reason; 0 says nothing."""
    assert dict(fabric_faults(mask)) == said


def test_complaints_are_series_of_the_gpu(node: Node) -> None:
    """Those that the driver denies are 0."""
    node.driver.set(6, "fabric.health_mask", 0b01 | 0b10 << 2)
    values = node.values(6)
    assert values["fabric_degraded", "degraded_bandwidth"] == 1.0
    assert values["fabric_degraded", "route_recovery"] == 0.0
