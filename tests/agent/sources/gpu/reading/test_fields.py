"""Field values by type, and what their errors mean."""

from __future__ import annotations

import struct

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading.gpus import decode_value
from support.gpu.reading import Node, node_values

(DOUBLE_BITS,) = struct.unpack("@Q", struct.pack("@d", 2.5))
HIGH = 0xDEADBEEF << 32


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (pynvml.NVML_VALUE_TYPE_DOUBLE, DOUBLE_BITS, 2.5),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, HIGH | 7, 7),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, 1 << 40, 1 << 40),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 1 << 63, 1 << 63),
        (pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG, 2**64 - 5, -5),
        (pynvml.NVML_VALUE_TYPE_SIGNED_INT, HIGH | (2**32 - 5), -5),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, HIGH | 9, 9),
        (99, 1, None),
    ],
)
def test_value_types(kind: int, raw: int, value: float | None) -> None:
    """The driver writes only the bytes of the type; the rest of the union is garbage."""
    assert decode_value(kind, raw) == value


def test_unsupported_field(node: Node) -> None:
    """The feature stays supported while another of its fields answers."""
    node.driver.unsupport(74, 0)
    values = node.values(0)
    assert ("throttle_seconds_total", "sw_power_cap") not in values
    assert values["throttle_seconds_total", "thermal"] == 110.0


def test_feature_without_fields(node: Node) -> None:
    """No warning is logged."""
    node.driver.unsupport(82)
    reading = node.read()
    assert "memory_temperature" in reading.gpus[0].unsupported
    assert node_values(reading)["supported", reading.gpus[0].model, "memory_temperature"] == 0.0
    assert reading.warnings == ()


def test_field_unknown_to_the_driver(node: Node) -> None:
    """An old driver answers that the id is an invalid argument."""
    node.driver.fail(230, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    node.driver.fail(226, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    node.driver.fail(227, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    reading = node.read()
    assert "recovery_action" in reading.gpus[0].unsupported
    assert reading.warnings == ()


def test_failing_field(node: Node) -> None:
    """One warning for the feature; the next reading queries it again."""
    node.driver.fail(82, pynvml.NVML_ERROR_UNKNOWN, 3)
    reading = node.read()
    assert reading.warnings == (
        f"GPU {reading.gpus[3].uuid}: could not read memory_temperature: Unknown Error",
    )
    node.driver.update(lambda fake: fake["gpus"][3]["errors"].clear())
    assert node.values(3)["temperature_celsius", "memory"] == 73.0


def test_no_field_values(node: Node) -> None:
    """Without the whole call only the fields are missing."""
    node.driver.unsupport("nvmlDeviceGetFieldValues")
    values = node.values(0)
    assert ("temperature_celsius", "memory") not in values
    assert values["temperature_celsius", "core"] == 55.0
