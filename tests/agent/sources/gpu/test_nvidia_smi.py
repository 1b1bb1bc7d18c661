"""A real GPU: what the agent reads is compared with nvidia-smi, at rest and under load.

Run on a machine with an NVIDIA GPU: `pytest tests/agent/sources/gpu/test_nvidia_smi.py -rs -s`.
"""

from __future__ import annotations

import math
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("pynvml", reason="pynvml (nvidia-ml-py) is not installed")
pytest.importorskip("msgspec", reason="msgspec is not installed")

from rankwatch.conventions.metrics import METRICS, section
from support.agent.process import until
from support.gpu.nvidia_smi import NUMBERS, STATES, UNCHECKED, Key, Look, compare, differences, link_sums
from support.gpu.reading import Values, node_values, values_of
from support.gpu.real_gpu import (
    LOAD_SHOWS_SECONDS,
    Machine,
    by_uuid,
    driver_state,
    family,
    gpu_agent,
    is_busy,
    load,
    machine,
    open_devices,
    page,
    read_with_gpm,
    watch_energy,
    within,
)

__all__ = ["load", "machine"]

PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one lane in one direction, by generation (PCI-SIG), including packet headers."""
OURS: Values = {
    ("info", "0", "0000:1b:00.0", "NVIDIA H100", "hopper", ""): 1,
    ("power_watts",): 300.0,
    ("fabric_state", "completed"): 1,
    ("throttle_active", "sw_power_cap"): 1,
    ("throttle_active", "gpu_idle"): 0,
}
THEIRS: Look = {
    "index": "0",
    "pci.bus_id": "00000000:1B:00.0",
    "name": "NVIDIA H100",
    "/product_architecture": "Hopper",
    "power.draw": "301.25",
    "temperature.memory": "N/A",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "clocks_event_reasons.active": "0x0000000000000004",
    "clocks_event_reasons.supported": "0x0000000000000005",
}


@pytest.mark.parametrize(
    ("change", "different"),
    [
        ({}, []),
        ({("power_watts",): 300_000.0}, [("power_watts",)]),
        ({("power_watts",): None}, [("power_watts",)]),
        ({("temperature_celsius", "memory"): 0.0}, [("temperature_celsius", "memory")]),
        ({("fabric_state", "completed"): None}, [("fabric_state", "completed")]),
        ({("throttle_active", "gpu_idle"): 1}, [("throttle_active", "gpu_idle")]),
        ({("info", "0", "0000:1b:00.0", "NVIDIA H100", "hopper", ""): None}, [("info",)]),
    ],
)
def test_comparison_finds_what_differs(change: dict[Key, float | None], different: list[Key]) -> None:
    """A wrong unit, a missing series, and a value that nobody measured."""
    values = {key: value for key, value in {**OURS, **change}.items() if value is not None}
    assert list(differences(values, THEIRS, THEIRS)) == different


def test_link_sums() -> None:
    """The output of `nvidia-smi nvlink` lists each link of each GPU."""
    lines = ["Data Tx: 10 KiB", "Data Tx: 5 KiB", "26.562 GB/s", "<inactive>", "CRC Errors: N/A"]
    output = "GPU 0: NVIDIA H200 (UUID: GPU-a)\n" + "".join(f"\t Link 0: {line}\n" for line in lines)
    assert link_sums(output) == {"GPU-a": {"nvlink Data Tx": "15", "nvlink active": "1"}}


def test_every_metric_is_compared_or_excused() -> None:
    """A new metric of a GPU needs a line in one of the tables."""
    of_the_node = ("rankwatch_", "driver_", "worker_", "supported", "readings_rejected")
    known = {"up", "info", "throttle_active", *UNCHECKED, *(key[0] for key in (*NUMBERS, *STATES))}
    names = {each.name.removeprefix("rankwatch_gpu_") for each in section("gpu")}
    assert {each for each in names if not each.startswith(of_the_node)} == known


@pytest.mark.process
@pytest.mark.gpu
def test_series_equal_nvidia_smi(machine: Machine) -> None:
    """Each value lies between an answer before and one after; what is not available has no series."""
    assert compare(machine.smi, machine.worker.read) == {}


@pytest.mark.process
@pytest.mark.gpu
def test_healthy_gpu_has_plausible_values(machine: Machine) -> None:
    """Our limits fit a real driver: nothing is rejected and nothing fails."""
    for _ in range(3):
        reading = machine.worker.read()
        assert reading.warnings == ()
        assert {key for key in node_values(reading) if key[0] == "readings_rejected_total"} == set()
        for gpu in reading.gpus:
            assert all(map(math.isfinite, values_of(gpu).values()))
        time.sleep(0.15)  # GPM needs 100 ms between two samples


@pytest.mark.process
@pytest.mark.gpu
def test_energy_is_power_over_time(machine: Machine) -> None:
    """nvidia-smi does not report energy, so it is compared with the watts it adds up."""
    watched = watch_energy(machine, 3.0)
    for uuid, (joules, seconds, watts) in watched.items():
        low, high = 0.6 * min(watts) - 10, 1.4 * max(watts) + 10
        assert low <= joules / seconds <= high, (uuid, joules, seconds, watts)
    if not watched:
        pytest.skip("no GPU reports energy")


@pytest.mark.process
@pytest.mark.gpu
def test_pcie_throughput_fits_the_link(machine: Machine) -> None:
    """nvidia-smi measures another 20 ms, so throughput is compared with generation and lanes."""
    for gpu in read_with_gpm(machine).gpus:
        values = values_of(gpu)
        generation, lanes = values.get(("pcie_generation_max",)), values.get(("pcie_width_max",))
        if generation is None or lanes is None:
            continue
        for direction in ("transmit", "receive"):
            most = PCIE_LANE_BYTES.get(int(generation), math.inf) * lanes * 1.05
            assert 0 <= values.get(("pcie_throughput_bytes", direction), 0.0) <= most


@pytest.mark.process
@pytest.mark.gpu
def test_activity_and_power_rise_under_load(machine: Machine, request: pytest.FixtureRequest) -> None:
    """Matrix products keep multiprocessors and tensor cores busy, and the counters are not suspect."""
    idle = by_uuid(machine.worker.read(), ("power_watts",))
    request.getfixturevalue("load")
    if not any(key[0] == "activity_ratio" for gpu in read_with_gpm(machine).gpus for key in values_of(gpu)):
        pytest.skip("the GPU has no GPM (before Hopper, or cut by MIG)")
    seen: dict[str, Values] = {}

    def busy() -> bool:
        time.sleep(0.2)
        seen.update({gpu.uuid: values_of(gpu) for gpu in machine.worker.read().gpus})
        # NVML's watts are a mean over a second, so they rise after the activity
        return all(is_busy(each) and each["power_watts",] > idle[uuid] + 20 for uuid, each in seen.items())

    within(LOAD_SHOWS_SECONDS, busy, "every GPU is busy and draws 20 W more than idle")
    for values in seen.values():
        assert all(0 <= value <= 1 for key, value in values.items() if key[0] == "activity_ratio")
        assert values["counters_suspect",] == 0


@pytest.mark.process
@pytest.mark.gpu
def test_series_equal_nvidia_smi_under_load(machine: Machine, load: subprocess.Popen[str]) -> None:
    """With a process on the GPU and counters that grow: a wrong unit shows only then."""
    assert compare(machine.smi, machine.worker.read) == {}
    assert load.poll() is None


@pytest.mark.process
@pytest.mark.gpu
def test_agent_exports_the_gpus(machine: Machine, tmp_path: Path) -> None:
    """Declared names, finite numbers, every GPU up, as many as are on the bus."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    uuids = {gpu.uuid for gpu in machine.worker.read().gpus if gpu.up}
    with gpu_agent(machine, tmp_path) as agent:
        families = list(parser.text_string_to_metric_families(page(agent).decode()))
    ours = [each for one in families for each in one.samples if each.name.startswith("rankwatch_gpu")]
    assert {each.name for each in ours} <= {each.name for each in METRICS}
    assert all(math.isfinite(each.value) for each in ours)
    up = {each.labels["gpu"] for each in ours if each.name == "rankwatch_gpu_up" and each.value == 1}
    assert up == uuids
    by_name = {each.name: each.value for each in ours}
    assert by_name["rankwatch_gpus_visible"] == len(uuids)
    assert by_name.get("rankwatch_gpus_expected", len(uuids)) == len(uuids)
    assert by_name["rankwatch_gpu_driver_unresponsive_total"] == 0


@pytest.mark.process
@pytest.mark.gpu
def test_release_closes_the_devices(machine: Machine, tmp_path: Path) -> None:
    """SIGUSR1 lets the driver be unloaded; after SIGUSR2 it is used again."""
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    with gpu_agent(machine, tmp_path) as agent:
        before = family(agent.process.pid)
        if not any(map(open_devices, before)):
            pytest.skip("no open /dev/nvidia* shows in /proc/*/fd here, so nothing can be seen to close")
        agent.process.send_signal(signal.SIGUSR1)
        until(lambda: driver_state(agent) == "released", "the driver is released")
        left = before | family(agent.process.pid)
        until(lambda: not any(map(open_devices, left)), "every GPU device is closed")
        agent.process.send_signal(signal.SIGUSR2)
        until(lambda: driver_state(agent) == "in_use", "the driver is in use again")
