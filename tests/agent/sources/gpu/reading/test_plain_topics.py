"""Load, memory, heat, clocks, PCIe: one value of the driver, one series."""

from __future__ import annotations

import pynvml
import pytest

from support.gpu.reading import Node, node_values, values_of

MIB = 1 << 20


def test_load_and_memory_are_those_of_the_gpu(node: Node) -> None:
    """Per cent become shares; memory keeps what the driver reserves apart."""
    assert (
        node.values(2).items()
        >= {
            ("utilization_ratio",): 0.92,
            ("memory_controller_utilization_ratio",): 0.42,
            ("memory_total_bytes",): 81559 * MIB,
            ("memory_used_bytes",): 62000 * MIB,
            ("memory_reserved_bytes",): 632 * MIB,
            ("memory_free_bytes",): (81559 - 62000 - 632) * MIB,
        }.items()
    )


def test_heat_and_clocks_are_those_of_the_gpu(node: Node) -> None:
    """In watts, joules, degrees and hertz."""
    assert (
        node.values(3).items()
        >= {
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
        }.items()
    )


def test_the_pcie_link_is_that_of_the_gpu(node: Node) -> None:
    """A link that fell back shows against its maximum."""
    node.driver.set(1, "pcie.generation", 1)
    node.driver.set(1, "pcie.width", 8)
    assert (
        node.values(1).items()
        >= {
            ("pcie_generation",): 1.0,
            ("pcie_generation_max",): 5.0,
            ("pcie_width",): 8.0,
            ("pcie_width_max",): 16.0,
            ("pcie_replays_total",): 4.0,
        }.items()
    )


def test_zero_is_a_value(node: Node) -> None:
    """An idle GPU is not a GPU that does not tell."""
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
def test_a_sentinel_has_no_series_and_is_counted(
    node: Node, path: str, raw: int, series: tuple[str, ...]
) -> None:
    """The other values of the GPU are there, and the other GPUs have the series."""
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


def test_a_value_that_is_not_supported_has_no_series(node: Node) -> None:
    """It is told as a feature that the GPU has not, and costs no warning."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    reading = node.read()
    assert ("power_watts",) not in values_of(reading.gpus[0])
    assert ("power_watts",) in values_of(reading.gpus[1])
    assert "power" in reading.gpus[0].unsupported
    assert "power" in reading.gpus[1].supported
    assert node_values(reading)["supported", reading.gpus[0].model, "power"] == 0.0
    assert reading.warnings == ()


def test_a_value_that_fails_is_told_and_costs_only_itself(node: Node) -> None:
    """It is asked for again the next time."""
    node.driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_UNKNOWN, 0)
    reading = node.read()
    values = values_of(reading.gpus[0])
    assert ("power_watts",) not in values
    assert ("power_limit_watts",) in values
    assert reading.warnings == (f"GPU {reading.gpus[0].uuid}: could not read power: Unknown Error",)
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert node.values(0)["power_watts",] == 610.25


def test_an_unsupported_value_is_asked_for_again_seldom(node: Node) -> None:
    """The 61st reading is the first to see that the driver has learnt it."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    node.read()
    node.driver.update(lambda fake: fake["gpus"][0]["unsupported"].clear())
    seen = [("power_watts",) in node.values(0) for _ in range(60)]
    assert seen == [False] * 59 + [True]


def test_an_older_driver_is_asked_by_the_older_names(node: Node) -> None:
    """Temperature and reasons for low clocks are features of such a driver too."""
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
    assert reading.gpus[1].unsupported == ()


def test_a_driver_that_does_not_keep_reserved_memory_apart_tells_total_and_free(node: Node) -> None:
    """What it calls used contains the reserved part, so used is left out."""
    node.driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    memory = {key for key in node.values(0) if key[0].startswith("memory_") and key[0].endswith("_bytes")}
    assert memory == {("memory_total_bytes",), ("memory_free_bytes",)}
