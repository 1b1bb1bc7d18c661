"""The comparison with nvidia-smi finds a healthy node alike, and notices one wrong value."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwatch.conventions.gpus import GPUS
from support.gpu import fake_nvidia_smi
from support.gpu.fake_nvidia_smi import fake_run
from support.gpu.nvidia_smi import Smi, command_run
from support.gpu.nvml import FakeDriver, split_into_instances
from support.gpu.reading import Node, node, values_of, worker_process
from support.gpu.smi_checks import NUMBERS, STATES, UNCHECKED, Key, fields
from support.gpu.smi_verdict import Verdict, hold, unheld

__all__ = ["node"]


def _set(described: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    at: Any = described["gpus"][0]
    for name in parents:
        at = at[int(name) if isinstance(at, list) else name]
    at[int(last) if isinstance(at, list) else last] = value


def _hold(node: Node, path: str = "", value: object = None) -> Verdict:
    """One round against an nvidia-smi that sees one value of the first GPU otherwise."""
    seen = copy.deepcopy(node.driver.node)
    if path:
        _set(seen, path, value)
    return hold(Smi(fake_run(seen), fields()), node.read, rounds=1)


def test_a_healthy_node_is_alike_in_every_series(node: Node) -> None:
    """Nothing is left that neither nvidia-smi nor a reason speaks of."""
    verdict = _hold(node)
    assert verdict.problems == {}
    assert verdict.untold == {}
    exported = {key for gpu in node.read().gpus for key in values_of(gpu)}
    assert unheld(exported, verdict) == set()
    assert ("power_watts",) in verdict.held
    assert ("throttle_active", "reliability") in verdict.held


def test_a_real_worker_and_a_real_process_are_compared_alike(fake_driver: FakeDriver) -> None:
    """The way it goes on a machine with a GPU."""
    command = [sys.executable, str(Path(fake_nvidia_smi.__file__))]
    with worker_process(fake_driver.environ) as worker:
        verdict = hold(Smi(command_run(command, fake_driver.environ), fields()), worker.read, rounds=1)
    assert verdict.problems == {}
    assert len(verdict.held) > 60


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("uuid", "GPU-other", ("up",)),
        ("name", "NVIDIA H200", ("info",)),
        ("serial", "1", ("info",)),
        ("architecture", 10, ("info",)),
        ("pci.bus", 0x77, ("info",)),
        ("memory.total", 80000 << 20, ("memory_total_bytes",)),
        ("memory.used", 60500 << 20, ("memory_used_bytes",)),
        ("memory.free", 1 << 30, ("memory_free_bytes",)),
        ("memory.reserved", 1 << 30, ("memory_reserved_bytes",)),
        ("utilization.gpu", 70, ("utilization_ratio",)),
        ("utilization.memory", 70, ("memory_controller_utilization_ratio",)),
        ("temperature.gpu", 50, ("temperature_celsius", "core")),
        ("fields.82", 80, ("temperature_celsius", "memory")),
        ("temperature.margin", 3, ("temperature_margin_celsius",)),
        ("power.usage_mw", 650_000, ("power_watts",)),
        ("power.enforced_limit_mw", 699_000, ("power_limit_watts",)),
        ("clocks.graphics", 1600, ("clock_hertz", "graphics")),
        ("clocks.sm", 1600, ("clock_hertz", "sm")),
        ("clocks.memory", 1600, ("clock_hertz", "memory")),
        ("clocks.video", 1600, ("clock_hertz", "video")),
        ("max_clocks.sm", 1600, ("clock_max_hertz", "sm")),
        ("max_clocks.video", 1600, ("clock_max_hertz", "video")),
        ("clocks_event_reasons.current", 0x20, ("throttle_active", "sw_thermal_slowdown")),
        ("clocks_event_reasons.current", 0x400, ("throttle_active", "reliability")),
        ("fields.74", 10_000_000, ("throttle_seconds_total", "sw_power_cap")),
        ("fields.76", 10_000_000, ("throttle_seconds_total", "sync_boost")),
        ("fields.269", 700_000_000, ("throttle_seconds_total", "sw_thermal_slowdown")),
        ("fields.270", 700_000_000, ("throttle_seconds_total", "hw_thermal_slowdown")),
        ("fields.271", 700_000_000, ("throttle_seconds_total", "hw_power_brake_slowdown")),
        ("pcie.generation", 4, ("pcie_generation",)),
        ("pcie.max_generation", 4, ("pcie_generation_max",)),
        ("pcie.width", 8, ("pcie_width",)),
        ("pcie.max_width", 8, ("pcie_width_max",)),
        ("fields.94", 4, ("pcie_replays_total",)),
        ("ecc.corrected.volatile", 11, ("ecc_errors_total", "corrected", "volatile")),
        ("ecc.corrected.aggregate", 99, ("ecc_errors_total", "corrected", "aggregate")),
        ("ecc.uncorrected.volatile", 999, ("ecc_errors_total", "uncorrected", "volatile")),
        ("ecc.uncorrected.aggregate", 2001, ("ecc_errors_total", "uncorrected", "aggregate")),
        ("fields.142", 21, ("remapped_rows", "corrected")),
        ("fields.143", 29, ("remapped_rows", "uncorrected")),
        ("fields.144", 1, ("row_remap_pending",)),
        ("fields.145", 1, ("row_remap_failed",)),
        ("fields.230", 1, ("recovery_action",)),
        ("fabric.state", 2, ("fabric_state",)),
        ("fabric.health_mask", 0x1A9, ("fabric_degraded", "degraded_bandwidth")),
        ("fabric.health_mask", 0x1A6, ("fabric_degraded", "route_recovery")),
        ("fabric.health_mask", 0x2AA, ("fabric_degraded", "incorrect_configuration")),
        ("nvlinks.3.active", 0, ("nvlinks_active",)),
        ("fields.138.5", 0, ("nvlink_bytes_total", "transmit")),
        ("fields.139.5", 0, ("nvlink_bytes_total", "receive")),
        ("fields.161.5", 0, ("nvlink_errors_total", "replay")),
        ("fields.162.5", 0, ("nvlink_errors_total", "recovery")),
        ("fields.163.5", 0, ("nvlink_errors_total", "crc")),
        ("processes.compute", [], ("process_memory_bytes", "40000")),
        ("processes.compute", [], ("processes",)),
        ("processes.compute.0.memory", 1 << 30, ("process_memory_bytes", "40000")),
        ("mig.mode", 1, ("mig_info",)),
    ],
)
def test_one_wrong_value_is_a_problem_of_its_series(node: Node, path: str, value: object, key: Key) -> None:
    """And of no other GPU's: nothing is compared with itself."""
    if path == "mig.mode":
        node.driver.update(lambda described: split_into_instances(described["gpus"][0]))
        value = 0
    verdict = _hold(node, path, value)
    assert key in verdict.problems, verdict
    assert len(verdict.problems) <= 6, verdict.problems  # of a link that is down six series differ


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("power.usage_mw", ("power_watts",)),
        ("utilization", ("utilization_ratio",)),
        ("fields.82", ("temperature_celsius", "memory")),
        ("fields.142", ("remapped_rows", "corrected")),
        ("clocks.video", ("clock_hertz", "video")),
        ("processes.compute.0.memory", ("process_memory_bytes", "40000")),
    ],
)
def test_a_series_of_what_nvidia_smi_calls_not_available_is_a_problem(
    node: Node, path: str, key: Key
) -> None:
    """A value nobody measured must not be exported; and one that both lack is alike."""
    problems = _hold(node, path, None).problems
    assert "a series of what is not there" in problems[key]
    node.driver.set(0, path, None)
    assert key not in _hold(node).problems


def test_a_series_that_is_missing_is_a_problem(node: Node) -> None:
    """nvidia-smi tells it, so the driver does."""
    node.driver.unsupport("nvmlDeviceGetPowerUsage", 0)
    assert "no series" in _hold(node).problems["power_watts",]


def test_a_value_that_jumps_once_is_no_problem(node: Node) -> None:
    """A clock may change between two answers; what differs in every round is wrong."""
    smi = Smi(fake_run(copy.deepcopy(node.driver.node)), fields())
    readings = iter([1500, 1700])

    def read() -> Any:
        node.driver.set(0, "clocks.graphics", next(readings))
        return node.read()

    verdict = hold(smi, read, rounds=2)
    assert verdict.problems == {}
    assert ("clock_hertz", "graphics") in verdict.held


def test_instances_of_mig_are_counted(node: Node) -> None:
    """A GPU cut into instances has neither utilisation nor activity, here as there."""
    node.driver.update(lambda described: split_into_instances(described["gpus"][0]))
    assert _hold(node).problems == {}


def test_every_declared_series_of_a_gpu_is_held_or_named_as_unchecked() -> None:
    """A new metric needs a line in one of the tables."""
    of_the_node = ("rankwatch_", "driver_", "worker_", "supported", "readings_rejected")
    by_themselves = {"up", "info", "mig_info", "process_memory_bytes", *(each.metric for each in STATES)}
    known = by_themselves | {each.key[0] for each in NUMBERS} | {key[0] for key in UNCHECKED}
    names = {each.name.removeprefix("rankwatch_gpu_") for each in GPUS}
    assert {each for each in names if not each.startswith(of_the_node)} == known
