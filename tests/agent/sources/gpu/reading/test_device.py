"""Queries about one GPU: units, fields, what it lacks, what fails, and values that cannot be true."""

from __future__ import annotations

import math
import struct

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading import device
from rankwatch_agent.sources.gpu.reading.device import Unit
from rankwatch_agent.sources.gpu.reading.gpus import decode_value
from support.gpu.reading import Node, node_values, values_of

_UNITS = [each for each in vars(device).values() if isinstance(each, Unit)]
(DOUBLE_BITS,) = struct.unpack("@Q", struct.pack("@d", 2.5))
HIGH = 0xDEADBEEF << 32
POWER_AND_TEMPERATURE = pytest.mark.parametrize(
    ("missing", "feature", "series"),
    [
        ("nvmlDeviceGetPowerUsage", "power", ("power_watts",)),
        (82, "memory_temperature", ("temperature_celsius", "memory")),
    ],
    ids=["call", "field"],
)
"""One that comes by a call, and one that comes as a field."""


@pytest.mark.parametrize(
    ("unit", "raw", "base"),
    [
        (device.PERCENT, 0, 0.0),
        (device.PERCENT, 100, 1.0),
        (device.PERCENT, 101, None),
        (device.MILLIWATTS, 412_345, 412.345),  # not 412.34500000000003
        (device.MILLIWATTS, 5_000_001, None),
        (device.MILLIJOULES, 5_000_000_123, 5_000_000.123),
        (device.MEGAHERTZ, 1980, 1.98e9),
        (device.MEGAHERTZ, 10_001, None),
        (device.NANOSECONDS, 1_500_000_000, 1.5),
        (device.KIBIBYTES, 3, 3072.0),
        (device.CELSIUS, -7, -7.0),
        (device.CELSIUS, -51, None),
        (device.CELSIUS, 201, None),
        (device.MEMORY_BYTES, (16 << 40) + 1, None),
        (device.FLAG, 2, None),
    ],
)
def test_units(unit: Unit, raw: int, base: float | None) -> None:
    """Numbers of the driver become base units, or nothing just past the limit."""
    assert unit.convert(raw) == base


@pytest.mark.parametrize("unit", _UNITS)
@pytest.mark.parametrize("raw", [2**32 - 1, 2**64 - 1, 9223372036854775792, math.nan, math.inf, -(10**30)])
def test_sentinels(unit: Unit, raw: float) -> None:
    """Other tools have exported 4294967295 and 9223372036854775792 as measurements."""
    assert unit.convert(raw) is None


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
def test_types_of_fields(kind: int, raw: int, value: float | None) -> None:
    """The driver writes only the bytes of the type; the rest of the union is garbage."""
    assert decode_value(kind, raw) == value


@pytest.mark.process
def test_zero_is_a_value(node: Node) -> None:
    """An idle GPU differs from one without an answer."""
    node.driver.set(0, "utilization.gpu", 0)
    node.driver.set(0, "power.usage_mw", 0)
    values = node.values(0)
    assert (values["utilization_ratio",], values["power_watts",]) == (0, 0)


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
    before = node.read()
    node.driver.set(4, path, raw)
    reading = node.read()
    assert [series in values_of(gpu) for gpu in (before.gpus[4], *reading.gpus[4:6])] == [True, False, True]
    earlier, now = (sum(node_values(each, "readings_rejected").values()) for each in (before, reading))
    assert now == earlier + 1


@POWER_AND_TEMPERATURE
def test_unsupported_feature(node: Node, missing: str | int, feature: str, series: tuple[str, ...]) -> None:
    """It is exported as unsupported, and costs no warning."""
    node.driver.unsupport(missing, 0)
    reading = node.read()
    lacks, has = reading.gpus[:2]
    assert [series in values_of(gpu) for gpu in (lacks, has)] == [False, True]
    assert feature in lacks.unsupported and feature in has.supported
    assert node_values(reading)["supported", lacks.model, feature] == 0.0
    assert reading.warnings == ()


def test_unsupported_feature_is_retried(node: Node) -> None:
    """Only the 61st reading sees that the driver supports it now."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    node.read()
    node.driver.update(lambda fake: fake["gpus"][0]["unsupported"].clear())
    assert [("power_watts",) in node.values(0) for _ in range(60)] == [False] * 59 + [True]


@POWER_AND_TEMPERATURE
def test_failing_feature(node: Node, missing: str | int, feature: str, series: tuple[str, ...]) -> None:
    """A warning is logged, and the next reading queries it again. What is beside it stays."""
    whole = node.values(3)
    node.driver.fail(missing, pynvml.NVML_ERROR_UNKNOWN, 3)
    reading = node.read()
    assert whole.keys() - values_of(reading.gpus[3]).keys() - {("counters_suspect",)} == {series}
    assert reading.warnings == (f"GPU {reading.gpus[3].uuid}: could not read {feature}: Unknown Error",)
    node.driver.update(lambda fake: fake["gpus"][3]["errors"].clear())
    assert node.values(3)[series] == whole[series]


def test_unsupported_field(node: Node) -> None:
    """The feature stays supported while another of its fields answers."""
    node.driver.unsupport(74, 0)
    values = node.values(0)
    assert ("throttle_seconds_total", "sw_power_cap") not in values
    assert values["throttle_seconds_total", "thermal"] == 110.0


def test_field_unknown_to_the_driver(node: Node) -> None:
    """An old driver answers that the id is an invalid argument."""
    for field in (226, 227, 230):
        node.driver.fail(field, pynvml.NVML_ERROR_INVALID_ARGUMENT)
    reading = node.read()
    assert "recovery_action" in reading.gpus[0].unsupported
    assert reading.warnings == ()


def test_no_field_values(node: Node) -> None:
    """Without the whole call only the fields are missing."""
    node.driver.unsupport("nvmlDeviceGetFieldValues")
    values = node.values(0)
    assert ("temperature_celsius", "memory") not in values
    assert values["temperature_celsius", "core"] == 55.0


def test_older_function_names(node: Node) -> None:
    """Temperature and throttle reasons are features of old drivers too."""
    for function in ("TemperatureV", "CurrentClocksEventReasons", "SupportedClocksEventReasons"):
        node.driver.fail(f"nvmlDeviceGet{function}", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    gpu = node.read().gpus[1]
    values = values_of(gpu)
    assert values["temperature_celsius", "core"] == 56.0
    assert values["throttle_active", "sw_power_cap"] == 1.0
    assert {"temperature", "throttle_reasons"} <= set(gpu.supported)
    assert gpu.unsupported == ("c2c", "fans", "retired_pages")  # the board has none of them
