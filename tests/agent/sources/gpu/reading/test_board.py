"""Firmware, fans, P-state, and what holds the clocks down."""

from __future__ import annotations

import pynvml
import pytest

from support.gpu.nvml_node import Node as Fake
from support.gpu.reading import Node, family, node_values, series, values_of

UNKNOWN_STATE = 32


def test_unknown_performance_state(node: Node) -> None:
    """NVML says 32 where it does not know; that is no implausible value."""
    node.driver.set(0, "performance_state", UNKNOWN_STATE)
    reading = node.read()
    assert ("performance_state",) not in values_of(reading.gpus[0])
    assert node_values(reading, "readings_rejected") == {}


def test_fans(node: Node) -> None:
    """A card has fans. They may run faster than the manufacturer's noise limit allows."""
    node.driver.update(lambda fake: fake["gpus"][0].update(fans=[40, 105]))
    assert family(node.values(0), "fan") == {("fan_speed_ratio", "0"): 0.4, ("fan_speed_ratio", "1"): 1.05}
    assert family(node.values(1), "fan") == {}


def test_firmware_is_read_seldom(node: Node) -> None:
    """It costs no call in the readings between, and each reading exports it."""
    node.read()
    node.driver.set(0, "firmware.vbios", "new")
    seen = [("firmware_info", "new", "G520.0200.00.05") in node.values(0) for _ in range(58)]
    assert seen == [False] * 57 + [True]


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        ("nvmlDeviceGetPerformanceState", {"performance_state"}),
        ("nvmlDeviceGetEncoderUtilization", {"video_utilization_ratio"}),
        ("nvmlDeviceGetNumFans", {"fan_speed_ratio"}),
    ],
)
@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_one_call_fails(node: Node, function: str, gone: set[str], error: int) -> None:
    """It costs its own series only. A call that the driver lacks is no failure."""
    for gpu in node.driver.node["gpus"]:
        gpu["fans"] = [40]
    node.driver.fail(function, error, 1)
    reading = node.read()
    missing = {key[0] for key in set(values_of(reading.gpus[0])) - set(values_of(reading.gpus[1]))}
    assert missing - {"firmware_info", "info", "process_memory_bytes"} == gone
    assert bool(reading.warnings) == (error == pynvml.NVML_ERROR_UNKNOWN)


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
        for base in (251, 269):
            fake["gpus"][1]["fields"] |= {str(base + each): (base + each) * 10**9 for each in range(3)}

    node.driver.update(prepare)
    slowdowns = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    expected = {} if first is None else {name: first + at for at, name in enumerate(slowdowns)}
    found = family(node.values(1), "throttle_seconds")
    assert {key[1]: value for key, value in found.items() if key[1] in slowdowns} == expected
    assert ("throttle_seconds_total", "sw_power_cap") in found


def test_active_throttle_reasons(node: Node) -> None:
    """A reason that the GPU does not know has no series."""
    node.driver.set(0, "clocks_event_reasons.supported", 0x1 | 0x4 | 0x40)
    node.driver.set(0, "clocks_event_reasons.current", 0x40)
    expected = series("throttle_active", gpu_idle=0, sw_power_cap=0, hw_thermal_slowdown=1)
    assert family(node.values(0), "throttle_active") == expected


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_sentinel_is_no_mask(node: Node, mask: int) -> None:
    """Otherwise every reason would be active."""
    node.driver.set(0, "clocks_event_reasons.current", mask)
    reading = node.read()
    assert family(values_of(reading.gpus[0]), "throttle_active") == {}
    assert node_values(reading)["readings_rejected_total", "throttle_reasons"] == 1.0
