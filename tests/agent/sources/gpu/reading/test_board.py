"""Firmware of a board, and what of it changes all the time."""

from __future__ import annotations

import pynvml
import pytest

from support.gpu.reading import Node, node_values, values_of

UNKNOWN_STATE = 32


def family(node: Node, name: str, index: int = 3) -> dict[tuple[str, ...], float]:
    return {key[1:]: value for key, value in node.values(index).items() if key[0] == name}


def test_firmware(node: Node) -> None:
    """Its names are labels."""
    assert node.values(3)["firmware_info", "96.00.74.00.03", "G520.0200.00.05"] == 1.0


def test_state(node: Node) -> None:
    values = node.values(3)
    assert values["performance_state",] == 1.0
    assert family(node, "video_utilization_ratio") == {("encoder",): 0.04, ("decoder",): 0.13}


def test_unknown_performance_state(node: Node) -> None:
    """NVML says 32 where it does not know; that is no implausible value."""
    node.driver.set(0, "performance_state", UNKNOWN_STATE)
    reading = node.read()
    assert ("performance_state",) not in values_of(reading.gpus[0])
    assert not [key for key in node_values(reading) if key[0] == "readings_rejected_total"]


def test_fans(node: Node) -> None:
    """A card has fans. They may run faster than the manufacturer's noise limit allows."""
    node.driver.update(lambda fake: fake["gpus"][0].update(fans=[40, 105]))
    assert family(node, "fan_speed_ratio", 0) == {("0",): 0.4, ("1",): 1.05}
    assert family(node, "fan_speed_ratio", 1) == {}


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
