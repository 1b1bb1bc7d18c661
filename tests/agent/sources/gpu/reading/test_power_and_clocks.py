"""Power, temperature, clocks, and what holds the clocks down."""

from __future__ import annotations

import pytest

from support.gpu.nvml_node import Node as Fake
from support.gpu.reading import Node, node_values


def test_power_temperature_and_clocks(node: Node) -> None:
    """In watts, joules, degrees and hertz."""
    found = node.values(3)
    assert found == found | {
        ("temperature_celsius", "core"): 58.0,
        ("temperature_celsius", "memory"): 73.0,
        ("temperature_margin_celsius",): 29.0,
        ("power_watts",): 613.25,
        ("power_limit_watts",): 670.0,
        ("energy_joules_total",): 5_003_000.0,
        ("clock_hertz", "graphics"): 1.745e9,
        ("clock_hertz", "sm"): 1.746e9,
        ("clock_hertz", "memory"): 2.603e9,
        ("clock_hertz", "video"): 1.445e9,
        ("clock_max_hertz", "graphics"): 1.98e9,
        ("clock_max_hertz", "sm"): 1.979e9,
        ("clock_max_hertz", "memory"): 2.619e9,
        ("clock_max_hertz", "video"): 1.545e9,
    }


def test_throttle_time(node: Node) -> None:
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


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("535.161.08", None),
        ("570.124.06", None),
        ("575.51.03", 251),
        ("575.57.08", 251),
        ("575.64.05", None),
        ("580.65.06", 251),
        ("580.76.05", None),
        ("580.82.07", 269),
        ("615.71", 269),
        ("", None),
        ("strange", None),
    ],
)
def test_slowdown_fields(node: Node, version: str, first: int | None) -> None:
    """NVIDIA numbered the three slowdowns twice, and gave the other numbers to power smoothing.

    A driver whose numbers no published nvml.h gives has no series: settings are never read as seconds.
    """

    def prepare(fake: Fake) -> None:
        fake["driver"].update(version=version)
        for base, seconds in ((251, 10), (269, 20)):
            fake["gpus"][1]["fields"] |= {str(base + each): (seconds + each) * 10**9 for each in range(3)}

    node.driver.update(prepare)
    found = {key[1]: value for key, value in node.values(1).items() if key[0] == "throttle_seconds_total"}
    start = {251: 10.0, 269: 20.0}.get(first or 0)
    slowdowns = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    expected = {} if start is None else {name: start + at for at, name in enumerate(slowdowns)}
    assert {name: value for name, value in found.items() if name in slowdowns} == expected
    assert "sw_power_cap" in found


def test_active_throttle_reasons(node: Node) -> None:
    """A reason that the GPU does not know has no series."""
    node.driver.set(0, "clocks_event_reasons.supported", 0x1 | 0x4 | 0x40)
    node.driver.set(0, "clocks_event_reasons.current", 0x40)
    found = {key[1]: value for key, value in node.values(0).items() if key[0] == "throttle_active"}
    assert found == {"gpu_idle": 0.0, "sw_power_cap": 0.0, "hw_thermal_slowdown": 1.0}


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_sentinel_is_no_mask(node: Node, mask: int) -> None:
    """Otherwise every reason would be active."""
    node.driver.set(0, "clocks_event_reasons.current", mask)
    reading = node.read()
    assert not [sample for sample in reading.gpus[0].samples if "throttle_active" in sample.metric]
    assert node_values(reading)["readings_rejected_total", "throttle_reasons"] == 1.0
