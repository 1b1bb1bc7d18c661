"""Device memory, processes, ECC, replaced rows, and the recovery action."""

from __future__ import annotations

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading.memory_and_ecc import MAX_PROCESSES
from support.gpu.reading import Node, node_values, values_of

MIB = 1 << 20
UNKNOWN_MEMORY = 2**64 - 1


@pytest.mark.process
def test_memory(node: Node) -> None:
    """Reserved memory is not part of used memory."""
    assert (
        node.values(2).items()
        >= {
            ("memory_total_bytes",): 81559 * MIB,
            ("memory_used_bytes",): 62000 * MIB,
        }.items()
    )


def test_memory_of_an_old_driver(node: Node) -> None:
    """It counts reserved memory as used, so used is left out."""
    node.driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    memory = {key for key in node.values(0) if key[0].startswith("memory_") and key[0].endswith("_bytes")}
    assert memory == {("memory_total_bytes",)}


def put(node: Node, *processes: dict[str, int]) -> None:
    node.driver.set(0, "processes.compute", list(processes))


def test_processes(node: Node) -> None:
    """Memory has a series only where the driver knows it."""
    put(node, {"pid": 11, "memory": 1 << 30}, {"pid": 12, "memory": UNKNOWN_MEMORY})
    gpu = node.read().gpus[0]
    values = values_of(gpu)
    assert values["processes",] == 2.0
    assert values["process_memory_bytes", "11"] == 1 << 30
    assert ("process_memory_bytes", "12") not in values
    assert gpu.pids == (11, 12)


def test_no_processes(node: Node) -> None:
    """Zero processes is a value."""
    put(node)
    gpu = node.read().gpus[0]
    assert values_of(gpu)["processes",] == 0.0
    assert gpu.pids == ()


def test_process_in_two_instances(node: Node) -> None:
    """It counts once, and its memory is the sum."""
    put(node, {"pid": 11, "memory": 5}, {"pid": 11, "memory": 7})
    values = node.values(0)
    assert values["processes",] == 1.0
    assert values["process_memory_bytes", "11"] == 12.0


def test_many_processes(node: Node) -> None:
    """All are counted, but the number of series is bounded."""
    put(node, *({"pid": pid, "memory": 1} for pid in range(1, MAX_PROCESSES + 51)))
    values = node.values(0)
    assert values["processes",] == MAX_PROCESSES + 50
    assert len([key for key in values if key[0] == "process_memory_bytes"]) == MAX_PROCESSES


def test_ecc_errors(node: Node) -> None:
    assert {key[1:]: value for key, value in node.values(3).items() if key[0] == "ecc_errors_total"} == {
        ("corrected", "volatile"): 13.0,
        ("corrected", "aggregate"): 103.0,
        ("uncorrected", "volatile"): 1003.0,
        ("uncorrected", "aggregate"): 2003.0,
    }


def test_ecc_off(node: Node) -> None:
    """0 errors would mean that memory is checked."""
    node.driver.set(3, "ecc.mode", 0)
    values = node.values(3)
    assert not [key for key in values if key[0] in ("ecc_errors_total", "sram_ecc_errors_total")]


def test_sram_errors(node: Node) -> None:
    """Above NVIDIA's limit the GPU is to be replaced."""
    node.driver.set(2, "sram.exceeded", 1)
    values = node.values(2)
    assert values["sram_ecc_threshold_exceeded",] == 1.0
    assert node.values(1)["sram_ecc_threshold_exceeded",] == 0.0
    assert {key[1:]: value for key, value in values.items() if key[0] == "sram_ecc_errors_total"} == {
        ("corrected", "volatile"): 3.0,
        ("uncorrected_parity", "volatile"): 13.0,
        ("uncorrected_secded", "volatile"): 23.0,
        ("corrected", "aggregate"): 103.0,
        ("uncorrected_parity", "aggregate"): 113.0,
        ("uncorrected_secded", "aggregate"): 123.0,
    }


def test_sram_errors_without_permission(node: Node) -> None:
    """NVML shows them to root only: a warning now and then, and nothing else is lost."""
    node.driver.fail("nvmlDeviceGetSramEccErrorStatus", pynvml.NVML_ERROR_NO_PERMISSION, 0)
    first, second = node.read(), node.read()
    assert [text.partition(": ")[2] for text in first.warnings] == [
        "could not read sram_ecc: Insufficient Permissions"
    ]
    assert second.warnings == ()
    assert not [key for key in values_of(second.gpus[0]) if key[0].startswith("sram")]
    assert ("ecc_errors_total", "corrected", "volatile") in values_of(second.gpus[0])


def banks(node: Node) -> dict[str, float]:
    return {key[1]: value for key, value in node.values(0).items() if key[0] == "row_remap_banks"}


def test_spare_rows(node: Node) -> None:
    """A bank without a spare row is exhausted: the next faulty row in it cannot be replaced."""
    assert banks(node) == {"max": 2550.0, "high": 5.0, "partial": 4.0, "low": 3.0, "none": 0.0}


def test_spare_rows_after_a_reset(node: Node) -> None:
    """They change only at a reset, so they are read again once the GPU was away."""
    banks(node)
    node.driver.set(0, "remap_banks.none", 1)
    assert banks(node)["none"] == 0.0
    node.driver.lose(0)
    node.read()
    node.driver.find(0)
    assert banks(node)["none"] == 1.0


def test_spare_rows_that_could_not_be_read(node: Node) -> None:
    """The next reading tries again."""
    node.driver.fail("nvmlDeviceGetRowRemapperHistogram", pynvml.NVML_ERROR_UNKNOWN, 0)
    assert banks(node) == {}
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert banks(node)["max"] == 2550.0


def test_retired_pages(node: Node) -> None:
    """Before Ampere, a faulty page is not replaced but left out."""
    for field, value in (("29", 4), ("30", 5), ("31", 1)):
        node.driver.set(1, f"fields.{field}", value)
    assert (
        node.values(1).items()
        >= {
            ("retired_pages", "corrected"): 4.0,
            ("retired_pages", "uncorrected"): 5.0,
            ("page_retirement_pending",): 1.0,
        }.items()
    )
    assert not [key for key in node.values(0) if key[0] in ("retired_pages", "page_retirement_pending")]


def test_remapped_rows(node: Node) -> None:
    node.driver.set(2, "fields.144", 1)
    node.driver.set(2, "fields.145", 1)
    assert (
        node.values(2).items()
        >= {
            ("remapped_rows", "corrected"): 22.0,
            ("remapped_rows", "uncorrected"): 32.0,
            ("row_remap_pending",): 1.0,
            ("row_remap_failed",): 1.0,
        }.items()
    )


def action(node: Node) -> list[tuple[str, ...]]:
    return [key for key in node.values(0) if key[0] == "recovery_action"]


@pytest.mark.parametrize(
    ("version", "number", "name"),
    [
        ("570.124.06", 0, "none"),
        ("580.95.05", 1, "gpu_reset"),
        ("580.95.05", 2, "node_reboot"),
        ("580.95.05", 3, "drain_p2p"),
        ("580.95.05", 4, "drain_and_reset"),
        ("580.95.05", 5, "bus_reset"),
        ("610.43.02", 5, "recover_imex_domain"),
        ("615.71", 6, "bus_reset"),
        ("615.71", 7, "system_reboot"),
    ],
)
def test_recovery_action(node: Node, version: str, number: int, name: str) -> None:
    """Only the present action has a series. NVIDIA's headers of 580 and of 610 give 5 two meanings."""
    node.driver.update(lambda fake: fake["driver"].update(version=version))
    node.driver.set(0, "fields.230", number)
    assert action(node) == [("recovery_action", name)]


@pytest.mark.parametrize(("version", "number"), [("580.95.05", 99), ("595.45.04", 5), ("580.95.05", 6)])
def test_unknown_recovery_action(node: Node, version: str, number: int) -> None:
    """A newer driver may request actions that we do not know."""
    node.driver.update(lambda fake: fake["driver"].update(version=version))
    node.driver.set(0, "fields.230", number)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[0]) if key[0] == "recovery_action"]
    assert node_values(reading)["readings_rejected_total", "recovery_action"] == 1.0


@pytest.mark.parametrize("action_field", [0, None])
def test_refused_call(node: Node, action_field: int | None) -> None:
    """A driver that refuses calls until a reset requests one, whatever its field says, and warns once."""
    node.driver.set(0, "fields.230", action_field)
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode"):
        node.driver.fail(function, pynvml.NVML_ERROR_RESET_REQUIRED, 0)
    reading = node.read()
    assert ("recovery_action", "gpu_reset") in values_of(reading.gpus[0])
    assert ("recovery_action", "none") not in values_of(reading.gpus[0])
    assert reading.warnings == (f"GPU {reading.gpus[0].uuid}: GPU requires restart",)


def test_gpu_that_cannot_be_identified_until_a_reset(node: Node) -> None:
    """It is lost, and the action it waits for is known."""
    node.read()
    node.driver.fail("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_RESET_REQUIRED, 0)
    gpu = node.read().gpus[0]
    assert (gpu.up, gpu.lost_reason) == (False, "GPU requires restart")
    assert ("recovery_action", "gpu_reset") in values_of(gpu)


@pytest.mark.parametrize(
    ("reset", "drain", "name"), [(0, 0, "none"), (1, 0, "gpu_reset"), (0, 1, "drain_and_reset")]
)
def test_recovery_action_of_an_old_driver(node: Node, reset: int, drain: int, name: str) -> None:
    """Fields 226 and 227 are used where field 230 is not supported."""
    node.driver.unsupport(230)
    node.driver.set(0, "fields.226", reset)
    node.driver.set(0, "fields.227", drain)
    assert action(node) == [("recovery_action", name)]
