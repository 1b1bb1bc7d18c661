"""What holds the clocks down."""

from __future__ import annotations

import pytest

from support.gpu.reading import Node, node_values


def test_throttle_time_is_told_in_seconds_by_reason(node: Node) -> None:
    """NVML counts nanoseconds."""
    found = {key[1]: value for key, value in node.values(1).items() if key[0] == "throttle_seconds_total"}
    assert found == {
        "sw_power_cap": 11.0,
        "thermal": 111.0,
        "sync_boost": 211.0,
        "board_limit": 311.0,
        "low_utilization": 411.0,
        "reliability": 511.0,
        "sw_thermal_slowdown": 701.0,
        "hw_thermal_slowdown": 801.0,
        "hw_power_brake_slowdown": 901.0,
    }


def test_a_driver_that_gives_the_numbers_another_meaning_is_not_asked(node: Node) -> None:
    """In the 570 series 269 to 271 are settings of power smoothing."""
    node.driver.update(lambda fake: fake["driver"].update(version="570.124.06"))
    assert ("throttle_seconds_total", "hw_thermal_slowdown") not in node.values(1)


def test_each_reason_that_the_gpu_knows_is_active_or_not(node: Node) -> None:
    """A reason it does not know has no series."""
    node.driver.set(0, "clocks_event_reasons.supported", 0x1 | 0x4 | 0x40)
    node.driver.set(0, "clocks_event_reasons.current", 0x40)
    found = {key[1]: value for key, value in node.values(0).items() if key[0] == "throttle_active"}
    assert found == {"gpu_idle": 0.0, "sw_power_cap": 0.0, "hw_thermal_slowdown": 1.0}


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_a_sentinel_is_no_set_of_reasons(node: Node, mask: int) -> None:
    """Else every reason would be active."""
    node.driver.set(0, "clocks_event_reasons.current", mask)
    reading = node.read()
    assert not [sample for sample in reading.gpus[0].samples if "throttle_active" in sample.metric]
    assert node_values(reading)["readings_rejected_total", "throttle_reasons"] == 1.0
