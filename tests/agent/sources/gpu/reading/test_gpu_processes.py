"""Processes on a GPU."""

from __future__ import annotations

from rankwatch_agent.sources.gpu.reading.memory_and_ecc import MAX_PROCESSES
from support.gpu.reading import Node, values_of

UNKNOWN_MEMORY = 2**64 - 1


def put(node: Node, *processes: dict[str, int]) -> None:
    node.driver.set(0, "processes.compute", list(processes))


def test_processes_are_counted_and_told_by_pid(node: Node) -> None:
    """Memory only where the driver tells it."""
    put(node, {"pid": 11, "memory": 1 << 30}, {"pid": 12, "memory": UNKNOWN_MEMORY})
    gpu = node.read().gpus[0]
    values = values_of(gpu)
    assert values["processes",] == 2.0
    assert values["process_memory_bytes", "11"] == 1 << 30
    assert ("process_memory_bytes", "12") not in values
    assert gpu.pids == (11, 12)


def test_a_gpu_without_processes_has_zero_of_them(node: Node) -> None:
    """Zero is known."""
    put(node)
    gpu = node.read().gpus[0]
    assert values_of(gpu)["processes",] == 0.0
    assert gpu.pids == ()


def test_a_process_in_two_instances_is_one_process(node: Node) -> None:
    """Its memory is the sum."""
    put(node, {"pid": 11, "memory": 5}, {"pid": 11, "memory": 7})
    values = node.values(0)
    assert values["processes",] == 1.0
    assert values["process_memory_bytes", "11"] == 12.0


def test_many_processes_are_counted_but_not_all_told_apart(node: Node) -> None:
    """The number of series is bounded."""
    put(node, *({"pid": pid, "memory": 1} for pid in range(1, MAX_PROCESSES + 51)))
    values = node.values(0)
    assert values["processes",] == MAX_PROCESSES + 50
    assert len([key for key in values if key[0] == "process_memory_bytes"]) == MAX_PROCESSES
