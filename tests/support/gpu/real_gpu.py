"""A real GPU as tests find it: nvidia-smi, a worker, an agent, and a load."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.protocol import Reading
from rankwatch_agent.sources.pci import PciGpus
from support.agent.process import AgentProcess, agent_process, fetch, until
from support.gpu.nvidia_smi import Key, Smi, command_run
from support.gpu.reading import Values, Worker, values_of, worker_process

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
        within(LOAD_STARTS_SECONDS, lambda: bool(lines), "the load runs")
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


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """Like `support.agent.process.until`, for what takes longer."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def gpu_agent(machine: Machine, directory: Path) -> Iterator[AgentProcess]:
    """The real agent with the collectors of GPUs, once it has read them."""
    collectors = ("gpu", "gpu_driver", "xid")
    given = ["--node", "n", "--collectors", ",".join(collectors), *machine.library]
    given += ["--intervals-seconds", ",".join(f"{each}=1" for each in collectors)]
    with agent_process(directory, *given) as agent:
        until(lambda: driver_state(agent) == "in_use", "the agent reads the GPUs")
        # the first page after that has the state, but maybe not yet the GPUs
        until(
            lambda: b"rankwatch_gpu_power" in page(agent) or b"rankwatch_gpu_up" in page(agent),
            "they are served",
        )
        yield agent


def page(agent: AgentProcess) -> bytes:
    """Its /metrics."""
    return fetch(agent.address, "/metrics").body


def driver_state(agent: AgentProcess) -> str:
    """The driver's state as the agent exports it; empty while it does not."""
    start = "rankwatch_gpu_driver_state{"
    lines = [each for each in page(agent).decode().splitlines() if each.startswith(start)]
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
