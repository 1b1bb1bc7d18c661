"""A real GPU: every NVML series of the agent against nvidia-smi, under load, and let go on request.

Run on a machine with an NVIDIA GPU: `pytest tests/agent/gpu/test_nvidia_smi.py -m gpu -rs -s`.
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

from rankwatch.conventions import METRICS
from support.agent.process import until
from support.gpu.reading import Values, node_values, values_of
from support.gpu.real_gpu import (
    LOAD_SHOWS_SECONDS,
    Machine,
    by_uuid,
    driver_state,
    family,
    gpu_agent,
    is_busy,
    listed,
    load,
    machine,
    open_devices,
    page,
    settled,
    watch_energy,
    within,
)
from support.gpu.smi_output import quantity
from support.gpu.smi_verdict import Verdict, hold, unheld

__all__ = ["load", "machine"]
pytestmark = pytest.mark.gpu

PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one lane in one direction, by generation (PCI-SIG), packet headers counted in."""


def test_every_series_is_what_nvidia_smi_says(machine: Machine) -> None:
    """Between an answer before and one after; what it calls not available has no series."""
    verdict = hold(machine.smi, machine.worker.read)
    machine.verdicts.append(verdict)
    assert not verdict.problems, listed(verdict.problems)


def test_the_versions_are_what_nvidia_smi_says(machine: Machine) -> None:
    """Driver, CUDA and, where it tells, NVML."""
    look = next(iter(machine.smi.look().values()))
    (info,) = (key for key in node_values(machine.worker.read()) if key[0] == "driver_info")
    _, driver, nvml, cuda = info
    assert (driver, cuda) == (look["/driver_version"], look["/cuda_version"])
    told = machine.smi.version().get("NVML VERSION")
    assert nvml
    assert told is None or told in nvml


def test_a_healthy_gpu_gives_no_value_that_cannot_be_true(machine: Machine) -> None:
    """No reading is rejected, nothing fails: our limits fit what a real driver says."""
    for _ in range(3):
        reading = machine.worker.read()
        assert reading.warnings == ()
        assert {key for key in node_values(reading) if key[0] == "readings_rejected_total"} == set()
        for gpu in reading.gpus:
            assert all(map(math.isfinite, values_of(gpu).values()))
        time.sleep(0.15)  # GPM needs 100 ms between two samples


def test_energy_is_power_over_time(machine: Machine) -> None:
    """nvidia-smi does not tell the counter, so it is held against the watts it adds up."""
    watched = watch_energy(machine, 3.0)
    for uuid, (joules, seconds, watts) in watched.items():
        assert 0.6 * min(watts) - 10 <= joules / seconds <= 1.4 * max(watts) + 10, (
            uuid,
            joules,
            seconds,
            watts,
        )
    if not watched:
        pytest.skip("no GPU tells energy")


def test_the_pcie_link_carries_no_more_than_it_can(machine: Machine) -> None:
    """nvidia-smi measures another 20 ms, so throughput is held against generation and lanes."""
    for gpu in settled(machine).gpus:
        values = values_of(gpu)
        generation, lanes = values.get(("pcie_generation_max",)), values.get(("pcie_width_max",))
        if generation is None or lanes is None:
            continue
        for direction in ("transmit", "receive"):
            most = PCIE_LANE_BYTES.get(int(generation), math.inf) * lanes * 1.05
            assert 0 <= values.get(("pcie_throughput_bytes", direction), 0.0) <= most


def test_activity_and_power_rise_under_load(machine: Machine, request: pytest.FixtureRequest) -> None:
    """Matrix products keep multiprocessors and tensor cores busy, and the counters are not suspect."""
    idle = by_uuid(machine.worker.read(), ("power_watts",))
    request.getfixturevalue("load")
    if not any(key[0] == "activity_ratio" for gpu in settled(machine).gpus for key in values_of(gpu)):
        pytest.skip("the GPU has no GPM (before Hopper, or cut by MIG)")
    seen: dict[str, Values] = {}

    def busy() -> bool:
        time.sleep(0.2)
        seen.update({gpu.uuid: values_of(gpu) for gpu in machine.worker.read().gpus})
        # NVML's watts are an average over a second, so they come after the activity
        return all(is_busy(each) and each["power_watts",] > idle[uuid] + 20 for uuid, each in seen.items())

    within(LOAD_SHOWS_SECONDS, busy, "every GPU is busy and draws 20 W more than idle")
    for values in seen.values():
        assert all(0 <= value <= 1 for key, value in values.items() if key[0] == "activity_ratio")
        assert values["counters_suspect",] == 0
    print(f"\nunder load: {seen}")


def test_every_series_is_what_nvidia_smi_says_under_load(
    machine: Machine, load: subprocess.Popen[str]
) -> None:
    """With a process on the GPU, and counters that grow: a wrong unit shows only then."""
    verdict = hold(machine.smi, machine.worker.read)
    machine.verdicts.append(verdict)
    assert load.poll() is None
    assert not verdict.problems, listed(verdict.problems)


def test_time_under_the_power_cap_is_seconds(machine: Machine, load: subprocess.Popen[str]) -> None:
    """It cannot grow faster than time, and grows as fast as nvidia-smi's microseconds."""
    name, cell = ("throttle_seconds_total", "sw_power_cap"), "clocks_event_reasons_counters.sw_power_cap"
    before, ours, begin = machine.smi.look(), by_uuid(machine.worker.read(), name), time.monotonic()
    time.sleep(3.0)
    later, after, seconds = by_uuid(machine.worker.read(), name), machine.smi.look(), time.monotonic() - begin
    grew = {uuid: later[uuid] - value for uuid, value in ours.items() if uuid in later}
    assert all(0 <= each <= seconds + 0.5 for each in grew.values()), (grew, seconds)
    told = {uuid: [quantity(look[uuid].get(cell, "")) for look in (before, after)] for uuid in grew}
    for uuid, (low, high) in told.items():
        if low is not None and high is not None:
            assert grew[uuid] <= high.value - low.value + 0.1, (uuid, grew, told)
    if not any(grew.values()):
        pytest.skip(f"the load does not reach the power cap: {told}; the unit is not proven")


def test_every_exported_series_was_held_against_something(machine: Machine) -> None:
    """What this nvidia-smi does not tell is named; a series that no table knows is an error."""
    if not machine.verdicts:
        machine.verdicts.append(hold(machine.smi, machine.worker.read))
    exported = {key for gpu in settled(machine).gpus for key in values_of(gpu)}
    held = set().union(*(each.held for each in machine.verdicts))
    untold = {key: text for each in machine.verdicts for key, text in each.untold.items() if key not in held}
    problems = {key: text for each in machine.verdicts for key, text in each.problems.items()}
    zeros = set.intersection(*(each.zeros for each in machine.verdicts))
    print(f"\nheld: {len(held)} series; alike only at 0, so their unit is not proven: {sorted(zeros)}")
    pids = {key for key in exported if key[0] == "process_memory_bytes"}
    assert unheld(exported - pids, Verdict(problems, held, untold, zeros)) == set()
    if untold or machine.smi.unknown:
        pytest.skip(
            f"all else was held; no answer for {listed(untold) or 'nothing'}; fields this nvidia-smi "
            f"does not know: {machine.smi.unknown}"
        )


def test_the_agent_serves_what_it_read(machine: Machine, tmp_path: Path) -> None:
    """Declared names, finite numbers, every GPU up, as many as are on the bus."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    uuids = {gpu.uuid for gpu in machine.worker.read().gpus if gpu.up}
    with gpu_agent(machine, tmp_path) as agent:
        families = list(parser.text_string_to_metric_families(page(agent).decode()))
    samples = [each for one in families for each in one.samples]
    ours = [each for each in samples if each.name.startswith("rankwatch_gpu")]
    declared = {each.name for each in METRICS}
    assert {each.name for each in ours} <= declared
    assert all(math.isfinite(each.value) for each in ours)
    assert {
        each.labels["gpu"] for each in ours if each.name == "rankwatch_gpu_up" and each.value == 1
    } == uuids
    by_name = {each.name: each.value for each in ours}
    assert by_name["rankwatch_gpus_visible"] == len(uuids)
    assert by_name.get("rankwatch_gpus_expected", len(uuids)) == len(uuids)
    assert by_name["rankwatch_gpu_driver_unresponsive_total"] == 0
    keys = [(each.name, tuple(sorted(each.labels.items()))) for each in samples]
    assert len(keys) == len(set(keys))


def test_after_a_release_no_process_of_ours_has_a_gpu_open(machine: Machine, tmp_path: Path) -> None:
    """SIGUSR1 lets the driver be unloaded; SIGUSR2 takes it up again."""
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
