"""Device memory, processes, ECC, replaced rows, and the recovery action."""

from __future__ import annotations

import pynvml
import pytest

from rankwatch_agent.sources.gpu.reading.memory_and_ecc import MAX_PROCESSES
from support.gpu.reading import Node, Values, family, node_values, series, values_of

UNKNOWN_MEMORY = 2**64 - 1


def test_memory_of_an_old_driver(node: Node) -> None:
    """It counts reserved memory as used, so used is left out."""
    node.driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert family(node.values(0), "memory_").keys() == {("memory_total_bytes",)}


def put(node: Node, *processes: dict[str, int]) -> None:
    node.driver.set(0, "processes.compute", list(processes))


@pytest.mark.parametrize(
    ("processes", "memory"),
    [
        ([], {}),
        ([(11, 1 << 30), (12, UNKNOWN_MEMORY)], {"11": 1 << 30}),
        ([(11, 5), (11, 7)], {"11": 12}),
    ],
    ids=["none is a count", "memory that the driver does not know", "in two instances"],
)
def test_processes(node: Node, processes: list[tuple[int, int]], memory: dict[str, float]) -> None:
    """Each counts once, with the sum of its memory."""
    put(node, *({"pid": pid, "memory": used} for pid, used in processes))
    gpu = node.read().gpus[0]
    pids = tuple(dict(processes))
    assert family(values_of(gpu), "process") == {
        ("processes",): len(pids),
        **series("process_memory_bytes", **memory),
    }
    assert gpu.pids == pids


def test_many_processes(node: Node) -> None:
    """All are counted, but the number of series is bounded."""
    put(node, *({"pid": pid, "memory": 1} for pid in range(1, MAX_PROCESSES + 51)))
    values = node.values(0)
    assert values["processes",] == MAX_PROCESSES + 50
    assert len(family(values, "process_memory_bytes")) == MAX_PROCESSES


def test_ecc_off(node: Node) -> None:
    """0 errors would mean that memory is checked."""
    node.driver.set(3, "ecc.mode", 0)
    assert family(node.values(3), "ecc_errors_total", "sram_ecc_errors_total") == {}


def test_sram_errors(node: Node) -> None:
    """Above NVIDIA's limit the GPU is to be replaced."""
    node.driver.set(2, "sram.exceeded", 1)
    assert [node.values(index)["sram_ecc_threshold_exceeded",] for index in (1, 2)] == [0, 1]


def test_sram_errors_without_permission(node: Node) -> None:
    """NVML shows them to root only: a warning now and then, and nothing else is lost."""
    node.driver.fail("nvmlDeviceGetSramEccErrorStatus", pynvml.NVML_ERROR_NO_PERMISSION, 0)
    first, second = node.read(), node.read()
    assert [text.partition(": ")[2] for text in first.warnings] == [
        "could not read sram_ecc: Insufficient Permissions"
    ]
    assert second.warnings == ()
    assert family(values_of(second.gpus[0]), "sram") == {}
    assert ("ecc_errors_total", "corrected", "volatile") in values_of(second.gpus[0])


def banks(node: Node) -> Values:
    return family(node.values(0), "row_remap_banks")


def test_spare_rows_after_a_reset(node: Node) -> None:
    """They change only at a reset, so they are read again once the GPU was away."""
    none = ("row_remap_banks", "none")
    banks(node)
    node.driver.set(0, "remap_banks.none", 1)
    assert banks(node)[none] == 0.0
    node.driver.lose(0)
    node.read()
    node.driver.find(0)
    assert banks(node)[none] == 1.0


def test_spare_rows_that_could_not_be_read(node: Node) -> None:
    """The next reading tries again."""
    node.driver.fail("nvmlDeviceGetRowRemapperHistogram", pynvml.NVML_ERROR_UNKNOWN, 0)
    assert banks(node) == {}
    node.driver.update(lambda fake: fake["gpus"][0]["errors"].clear())
    assert banks(node)["row_remap_banks", "max"] == 2550.0


def test_retired_pages(node: Node) -> None:
    """Before Ampere, a faulty page is not replaced but left out."""
    for field, value in (("29", 4), ("30", 5), ("31", 1)):
        node.driver.set(1, f"fields.{field}", value)
    assert family(node.values(1), "retired_pages", "page_retirement") == {
        **series("retired_pages", corrected=4, uncorrected=5),
        ("page_retirement_pending",): 1,
    }
    assert family(node.values(0), "retired_pages", "page_retirement") == {}


def test_failed_remapping(node: Node) -> None:
    node.driver.set(2, "fields.144", 1)
    node.driver.set(2, "fields.145", 1)
    expected = {("row_remap_pending",): 1, ("row_remap_failed",): 1}
    assert family(node.values(2), "row_remap_pending", "row_remap_failed") == expected


def request(node: Node, number: int | None, version: str = "580.95.05") -> None:
    node.driver.update(lambda fake: fake["driver"].update(version=version))
    node.driver.set(0, "fields.230", number)


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
    request(node, number, version)
    assert family(node.values(0), "recovery_action") == {("recovery_action", name): 1}


@pytest.mark.parametrize(("version", "number"), [("580.95.05", 99), ("595.45.04", 5), ("580.95.05", 6)])
def test_unknown_recovery_action(node: Node, version: str, number: int) -> None:
    """A newer driver may request actions that we do not know."""
    request(node, number, version)
    reading = node.read()
    assert family(values_of(reading.gpus[0]), "recovery_action") == {}
    assert node_values(reading)["readings_rejected_total", "recovery_action"] == 1.0


@pytest.mark.parametrize("action_field", [0, None])
def test_refused_call(node: Node, action_field: int | None) -> None:
    """A driver that refuses calls until a reset requests one, whatever its field says, and warns once."""
    request(node, action_field)
    for function in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode"):
        node.driver.fail(function, pynvml.NVML_ERROR_RESET_REQUIRED, 0)
    reading = node.read()
    requested = family(values_of(reading.gpus[0]), "recovery_action")
    assert requested == {("recovery_action", "gpu_reset"): 1}
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
    assert family(node.values(0), "recovery_action") == {("recovery_action", name): 1}
