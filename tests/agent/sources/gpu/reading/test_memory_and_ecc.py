"""Device memory, processes, ECC, replaced rows, and the recovery action."""

from __future__ import annotations

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading.memory_and_ecc import MAX_PROCESSES
from support.gpu.reading import Node, node_values, values_of

MIB = 1 << 20
UNKNOWN_MEMORY = 2**64 - 1


def test_memory(node: Node) -> None:
    """Reserved memory is not part of used memory."""
    assert (
        node.values(2).items()
        >= {
            ("memory_total_bytes",): 81559 * MIB,
            ("memory_used_bytes",): 62000 * MIB,
            ("memory_reserved_bytes",): 632 * MIB,
            ("memory_free_bytes",): (81559 - 62000 - 632) * MIB,
        }.items()
    )


def test_memory_of_an_old_driver(node: Node) -> None:
    """It counts reserved memory as used, so used is left out."""
    node.driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    memory = {key for key in node.values(0) if key[0].startswith("memory_") and key[0].endswith("_bytes")}
    assert memory == {("memory_total_bytes",), ("memory_free_bytes",)}


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
    assert not [key for key in node.values(3) if key[0] == "ecc_errors_total"]


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
    ("number", "name"),
    [
        (0, "none"),
        (1, "gpu_reset"),
        (2, "node_reboot"),
        (3, "drain_p2p"),
        (4, "drain_and_reset"),
        (5, "recover_imex_domain"),
    ],
)
def test_recovery_action(node: Node, number: int, name: str) -> None:
    """Only the present action has a series."""
    node.driver.set(0, "fields.230", number)
    assert action(node) == [("recovery_action", name)]


def test_unknown_recovery_action(node: Node) -> None:
    """A newer driver may request actions that we do not know."""
    node.driver.set(0, "fields.230", 99)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[0]) if key[0] == "recovery_action"]
    assert node_values(reading)["readings_rejected_total", "recovery_action"] == 1.0


@pytest.mark.parametrize(
    ("reset", "drain", "name"), [(0, 0, "none"), (1, 0, "gpu_reset"), (0, 1, "drain_and_reset")]
)
def test_recovery_action_of_an_old_driver(node: Node, reset: int, drain: int, name: str) -> None:
    """Fields 226 and 227 are used where field 230 is not supported."""
    node.driver.unsupport(230)
    node.driver.set(0, "fields.226", reset)
    node.driver.set(0, "fields.227", drain)
    assert action(node) == [("recovery_action", name)]
