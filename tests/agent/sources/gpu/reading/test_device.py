"""Queries about one GPU: what it lacks, what fails, and values that cannot be true."""

from __future__ import annotations

import pynvml
import pytest

from support.gpu.reading import Node, node_values, values_of


@pytest.mark.process
def test_zero_is_a_value(node: Node) -> None:
    """An idle GPU differs from one without an answer."""
    node.driver.set(0, "utilization.gpu", 0)
    node.driver.set(0, "power.usage_mw", 0)
    values = node.values(0)
    assert values["utilization_ratio",] == 0.0
    assert values["power_watts",] == 0.0


@pytest.mark.parametrize(
    ("path", "raw", "series"),
    [
        ("power.usage_mw", 4294967295, ("power_watts",)),
        ("power.energy_mj", 9223372036854775792, ("energy_joules_total",)),
        ("memory.total", 18446744073709551615, ("memory_total_bytes",)),
        ("utilization.gpu", 4294967295, ("utilization_ratio",)),
        ("clocks.sm", 4294967295, ("clock_hertz", "sm")),
        ("fields.82", 4294967295, ("temperature_celsius", "memory")),
        ("fields.74", 18446744073709551615, ("throttle_seconds_total", "sw_power_cap")),
        ("temperature.gpu", 300, ("temperature_celsius", "core")),
    ],
)
def test_implausible_value(node: Node, path: str, raw: int, series: tuple[str, ...]) -> None:
    """It is counted and has no series; everything else is exported."""
    assert series in values_of(node.read().gpus[4])
    before = sum(
        value for key, value in node_values(node.read()).items() if key[0] == "readings_rejected_total"
    )
    node.driver.set(4, path, raw)
    reading = node.read()
    assert series not in values_of(reading.gpus[4])
    assert series in values_of(reading.gpus[5])
    rejected = {
        key: value for key, value in node_values(reading).items() if key[0] == "readings_rejected_total"
    }
    assert sum(rejected.values()) == before + 1


def test_unsupported_feature(node: Node) -> None:
    """It is exported as unsupported and costs no warning."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    reading = node.read()
    assert ("power_watts",) not in values_of(reading.gpus[0])
    assert ("power_watts",) in values_of(reading.gpus[1])
    assert "power" in reading.gpus[0].unsupported
    assert "power" in reading.gpus[1].supported
    assert node_values(reading)["supported", reading.gpus[0].model, "power"] == 0.0
    assert reading.warnings == ()


def test_failing_feature(node: Node) -> None:
    """A warning is logged, and the next reading queries it again."""
    node.driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_UNKNOWN, 0)
    reading = node.read()
    values = values_of(reading.gpus[0])
    assert ("power_watts",) not in values
    assert ("power_limit_watts",) in values
    assert reading.warnings == (f"GPU {reading.gpus[0].uuid}: could not read power: Unknown Error",)
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert node.values(0)["power_watts",] == 610.25


def test_unsupported_feature_is_retried(node: Node) -> None:
    """Only the 61st reading sees that the driver supports it now."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    node.read()
    node.driver.update(lambda fake: fake["gpus"][0]["unsupported"].clear())
    seen = [("power_watts",) in node.values(0) for _ in range(60)]
    assert seen == [False] * 59 + [True]


def test_older_function_names(node: Node) -> None:
    """Temperature and throttle reasons are features of old drivers too."""
    for function in (
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetSupportedClocksEventReasons",
    ):
        node.driver.fail(function, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    reading = node.read()
    values = values_of(reading.gpus[1])
    assert values["temperature_celsius", "core"] == 56.0
    assert values["throttle_active", "sw_power_cap"] == 1.0
    assert {"temperature", "throttle_reasons"} <= set(reading.gpus[1].supported)
    assert reading.gpus[1].unsupported == ("c2c", "fans", "retired_pages")  # the board has none of them
