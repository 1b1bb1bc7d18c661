"""A real GPU: what the agent reads is compared with nvidia-smi, at rest and under load.

Run on a machine with an NVIDIA GPU: `pytest tests/agent/sources/gpu/test_nvidia_smi.py -rs -s`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pynvml", reason="pynvml (nvidia-ml-py) is not installed")
pytest.importorskip("msgspec", reason="msgspec is not installed")

from rankwatch.conventions.metrics import METRICS, section
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.protocol import Reading
from rankwatch_agent.sources.pci import PciGpus
from support.agent.process import AgentProcess, agent_process, until
from support.gpu.nvidia_smi import (
    NUMBERS,
    STATES,
    UNCHECKED,
    Key,
    Look,
    Smi,
    command_run,
    compare,
    differences,
    link_sums,
)
from support.gpu.reading import Values, Worker, node_values, values_of, worker_process

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

    until(busy, "every GPU is busy and draws 20 W more than idle", seconds=LOAD_SHOWS_SECONDS)
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
        families = list(parser.text_string_to_metric_families(agent.page()))
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


_SMI_PLACES = ("/usr/local/nvidia/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
_LIBRARY_PLACES = (
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib/libnvidia-ml.so.1",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
)
LOAD_STARTS_SECONDS = 240.0
"""PyTorch from a cold disk, and the first kernel."""
LOAD_SHOWS_SECONDS = 30.0
_LOAD = """
import sys, time, torch
if not torch.cuda.is_available():
    print("PyTorch sees no GPU", flush=True)
    sys.exit()
gpus = range(torch.cuda.device_count())
given = [torch.randn(8192, 8192, device=f"cuda:{each}", dtype=torch.bfloat16) for each in gpus]
end = time.monotonic() + 300
printed = False
while time.monotonic() < end:
    for _ in range(10):
        for each in given:
            each @ each
    for each in gpus:
        torch.cuda.synchronize(each)
    if not printed:
        print("running", flush=True)
        printed = True
"""


class Machine(NamedTuple):
    """nvidia-smi, and a worker that keeps the driver initialised."""

    smi: Smi
    worker: Worker
    library: tuple[str, ...]
    """Arguments that name libnvidia-ml.so.1, where the agent would not look for it."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """This machine; skips where it has no GPU that answers."""
    smi = _smi_or_skip()
    with worker_process({}) as worker:
        answer = worker.collect()
        if answer.reading is not None:
            yield Machine(smi, worker, _library_if_hidden())
            return
    assert answer.failure
    library = next((each for each in _LIBRARY_PLACES if Path(each).exists()), None)
    assert answer.failure.absent and library, f"nvidia-smi answers, NVML does not: {answer.failure.message}"
    with worker_process({}, "--library", library) as worker:
        worker.read()
        yield Machine(smi, worker, ("--nvml-library", library))


@pytest.fixture(scope="module")
def load(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """Matrix products in bfloat16 on every GPU, until the end of these tests."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, so nothing puts the GPU under load")
    process = subprocess.Popen([sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, text=True)
    try:
        lines: list[str] = []
        stdout = process.stdout
        assert stdout
        threading.Thread(target=lambda: lines.append(stdout.readline()), daemon=True).start()
        until(lambda: bool(lines), "the load runs", seconds=LOAD_STARTS_SECONDS)
        if lines != ["running\n"]:
            pytest.skip(f"no load: {lines[0].strip() or 'PyTorch ended without output'}")
        yield process
    finally:
        process.kill()
        process.communicate()


def _library_if_hidden() -> tuple[str, ...]:
    """Arguments for an agent in a sandbox whose PCI bus shows no GPU: there it asks no driver by itself."""
    with contextlib.suppress(NotApplicable, CollectError):
        if PciGpus(Path("/sys")).expected():
            return ()
    ctypes.CDLL("libnvidia-ml.so.1")
    found = re.search(r"/\S*libnvidia-ml\.so\S*", Path("/proc/self/maps").read_text())
    return ("--nvml-library", found[0]) if found else ()


def _smi_or_skip() -> Smi:
    program = shutil.which("nvidia-smi") or next((each for each in _SMI_PLACES if Path(each).exists()), None)
    if program is None:
        pytest.skip("no NVIDIA GPU: nvidia-smi is not installed")
    run = command_run(program)
    try:
        status, output = run("-L")
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no NVIDIA GPU: nvidia-smi -L failed: {error}")
    if status or "GPU 0:" not in output:
        pytest.skip(f"no NVIDIA GPU: nvidia-smi -L says {output.strip()!r}")
    return Smi(run)


@contextlib.contextmanager
def gpu_agent(machine: Machine, directory: Path) -> Iterator[AgentProcess]:
    """The real agent with the collectors of GPUs, once it has read them."""
    collectors = ("gpu", "gpu_driver", "xid")
    given = ["--node", "n", "--collectors", ",".join(collectors), *machine.library]
    given += ["--intervals-seconds", ",".join(f"{each}=1" for each in collectors)]
    with agent_process(directory, *given) as agent:
        until(lambda: driver_state(agent) == "in_use", "the agent reads the GPUs")
        # the first page after that has the state, but maybe not yet the GPUs
        until(lambda: re.search("rankwatch_gpu_(power|up)", agent.page()) is not None, "they are served")
        yield agent


def driver_state(agent: AgentProcess) -> str:
    """The driver's state as the agent exports it; empty while it does not."""
    start = "rankwatch_gpu_driver_state{"
    lines = [each for each in agent.page().splitlines() if each.startswith(start)]
    return lines[0].partition('state="')[2].partition('"')[0] if lines else ""


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def open_devices(pid: int) -> set[str]:
    """/dev/nvidia* that a process has open; none where it has ended."""
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("/dev/nvidia")}


def read_with_gpm(machine: Machine) -> Reading:
    """A reading with GPM: it needs two samples at least 100 ms apart."""
    machine.worker.read()
    time.sleep(0.15)
    return machine.worker.read()


def by_uuid(reading: Reading, key: Key) -> dict[str, float]:
    """One series of each GPU that has it."""
    found = {gpu.uuid: values_of(gpu).get(key) for gpu in reading.gpus}
    return {uuid: value for uuid, value in found.items() if value is not None}


def is_busy(values: Values) -> bool:
    """Whether matrix products show in every counter that speaks of them."""
    sm, tensor = (values.get(("activity_ratio", unit), 0.0) for unit in ("sm", "tensor"))
    return sm > 0.1 and tensor > 0.1 and values.get(("utilization_ratio",), 0.0) > 0.5


def watch_energy(machine: Machine, seconds: float) -> dict[str, tuple[float, float, list[float]]]:
    """UUID -> joules used, seconds gone by, watts seen meanwhile."""
    energy, power = ("energy_joules_total",), ("power_watts",)
    first, begin = machine.worker.read(), time.monotonic()
    start, watts = by_uuid(first, energy), {uuid: [each] for uuid, each in by_uuid(first, power).items()}
    while True:
        time.sleep(0.2)
        reading, gone = machine.worker.read(), time.monotonic() - begin
        for uuid, each in by_uuid(reading, power).items():
            watts.setdefault(uuid, []).append(each)
        if gone > seconds:
            now = by_uuid(reading, energy)
            return {uuid: (now[uuid] - joules, gone, watts[uuid]) for uuid, joules in start.items()}
