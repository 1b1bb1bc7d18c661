"""The real agent on a GPU node: a fault costs its own series and no others."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwatch_agent.agent import OTLP_STOP_SECONDS, STOP_SECONDS
from rankwatch_agent.runtime.logs import FLUSH_SECONDS
from rankwatch_agent.sources.gpu.driver import END_SECONDS, KILL_SECONDS
from support.agent.process import until
from support.gpu.node import GpuNode, gpu_node
from support.gpu.nvml import FakeDriver, fake_driver, nvml_library

__all__ = ["fake_driver", "nvml_library"]

pytestmark = pytest.mark.process

OF_EACH = {
    "host": "rankwatch_host_cpus",
    "network": "rankwatch_network_receive_bytes_total",
    "tcp": "rankwatch_tcp_sent_segments_total",
    "rdma": "rankwatch_rdma_receive_bytes_total",
    "gpu": "rankwatch_gpu_power_watts",
    "gpu_driver": "rankwatch_gpus_expected",
    "xid": "rankwatch_gpu_xid_events_total",
    "kernel_log": "rankwatch_kernel_log_events_total",
    "affinity": "rankwatch_gpu_nic_affinity_info",
}
"""One series of each source."""
NOT_IN_ORDER = "the NVML worker did not shut the driver down within 1.5 s; it is killed"
"""Happens on a very busy machine. The tests of `Driver` check the shutdown with enough time."""


@pytest.fixture
def node(tmp_path: Path, fake_driver: FakeDriver) -> Iterator[GpuNode]:
    """An agent whose deadline is short enough for a test."""
    with gpu_node(tmp_path, fake_driver, "--deadlines-seconds", "gpu=4") as running:
        until(lambda: set(OF_EACH.values()) <= running.families(), "every source is exported")
        yield running


def remove_host(node: GpuNode) -> None:
    """Make the kernel's counters of the host unreadable."""
    for name in ("stat", "meminfo", "vmstat"):
        (node.tree.procfs / name).unlink(missing_ok=True)
        (node.tree.procfs / name).mkdir()
    shutil.rmtree(node.tree.procfs / "pressure")


def garble_tcp(node: GpuNode) -> None:
    """A file of /proc that contains garbage."""
    (node.tree.procfs / "net/snmp").write_text("\x00 nonsense \xff\n" * 3)


BREAKS: dict[str, Callable[[GpuNode], None]] = {
    "host": remove_host,
    "tcp": garble_tcp,
}
"""The other sources are broken in `test_whole_node.py`."""


@pytest.mark.parametrize("broken", sorted(BREAKS))
def test_broken_source(node: GpuNode, broken: str) -> None:
    """It costs only its own series."""
    BREAKS[broken](node)
    until(lambda: OF_EACH[broken] not in node.families(), f"the series of {broken} are gone")
    until(lambda: node.state(broken) in ("failed", "not_applicable"), "its collector says so")
    others = {name for source, name in OF_EACH.items() if source != broken}
    assert others <= node.families()


def test_hung_driver_call(node: GpuNode) -> None:
    """It costs the GPU series but no scrape; it is reported, and a new worker brings the GPUs back."""
    others = {name for source, name in OF_EACH.items() if source != "gpu"}
    node.driver.hang("nvmlDeviceGetPowerUsage", 3)
    scrapes = 0

    def reported() -> bool:
        nonlocal scrapes
        scrapes += 1
        assert others <= node.families()
        return 'rankwatch_gpu_driver_state{node="n",state="unresponsive"}' in node.metrics()

    until(reported, "the hang is reported")
    assert scrapes > 1  # one that waited for the call would have been the only one
    metrics = node.metrics()
    assert metrics['rankwatch_gpu_driver_unresponsive_total{node="n"}'] == 1
    assert metrics['rankwatch_gpus_expected{node="n"}'] == 8
    assert metrics['rankwatch_gpus_visible{node="n"}'] == 0
    assert "rankwatch_gpu_power_watts" not in node.families()
    assert "rankwatch_gpu_up" not in node.families()
    node.driver.release()
    until(lambda: "rankwatch_gpu_power_watts" in node.families(), "the GPUs are back")
    until(lambda: node.metrics()['rankwatch_gpus_visible{node="n"}'] == 8, "all of them")
    status, log = node.agent.stop()
    assert status == 0
    assert "driver unresponsive: no answer within 3.2 s" in log


def test_lost_gpu(node: GpuNode) -> None:
    """It keeps its identity and comes back under it; the others go on."""
    uuid = node.driver.node["gpus"][5]["uuid"]
    up = f'rankwatch_gpu_up{{gpu="{uuid}",node="n"}}'
    node.driver.lose(5)
    until(lambda: node.metrics()[up] == 0, "the loss is seen")
    metrics = node.metrics()
    assert sum(value for name, value in metrics.items() if name.startswith("rankwatch_gpu_up{")) == 7
    assert f'rankwatch_gpu_power_watts{{gpu="{uuid}",node="n"}}' not in metrics
    assert any(name.startswith("rankwatch_gpu_info{") and uuid in name for name in metrics)
    until(lambda: node.metrics()['rankwatch_gpus_visible{node="n"}'] == 7, "it is not counted")
    node.driver.find(5)
    until(lambda: node.metrics()[up] == 1, "it is back")


def test_xid_from_driver_and_kernel_log(node: GpuNode) -> None:
    """An error that both report counts once, and one that only one reports counts too."""
    gpu = node.driver.node["gpus"][2]
    name = f'rankwatch_gpu_xid_errors_total{{gpu="{gpu["uuid"]}",node="n",xid="79"}}'
    probe = f'rankwatch_gpu_xid_errors_total{{gpu="{node.driver.node["gpus"][0]["uuid"]}",node="n",xid="31"}}'

    def listens() -> bool:
        node.driver.xid(0, 31)  # those from before the worker listens are not delivered
        return probe in node.metrics()

    until(listens, "the worker listens")
    node.driver.xid(2, 79)
    until(lambda: node.metrics().get(name) == 1, "NVML's event is counted")
    bus = f"{gpu['pci']['bus']:02x}"
    line = f"4,2,2000000,-;NVRM: Xid (PCI:0000:{bus}:00): 79, pid=7, GPU has fallen off the bus.\n"
    with node.kernel_log.open("a") as log:
        log.write(line)
    events = 'rankwatch_kernel_log_events_total{event="gpu_fallen_off_bus",node="n"}'
    until(lambda: node.metrics()[events] == 1, "the log is read")
    assert node.metrics()[name] == 1
    with node.kernel_log.open("a") as log:
        log.write(line.replace("4,2,2000000", "4,3,3000000"))
    until(lambda: node.metrics()[name] == 2, "the second one is counted")


def test_release_and_resume_by_signal(node: GpuNode) -> None:
    """Between the signals no process of ours uses the driver: the worker shut it down or was killed."""
    (worker,) = {pid for pid, function in node.driver.calls if function == "nvmlInit"}
    node.agent.process.send_signal(signal.SIGUSR1)
    until(lambda: not Path(f"/proc/{worker}").exists(), "the worker is gone")
    in_order = (worker, "nvmlShutdown") in node.driver.calls
    until(lambda: node.state("gpu") == "not_applicable", "the collector says so")
    released = 'rankwatch_gpu_driver_state{node="n",state="released"}'
    until(lambda: released in node.metrics(), "the driver's state says so")
    node.agent.process.send_signal(signal.SIGUSR2)
    until(lambda: node.state("gpu") == "ok", "the driver is in use again")
    _, log = node.agent.stop()
    assert in_order or NOT_IN_ORDER in log


@pytest.mark.parametrize("hung", [False, True])
def test_sigterm_ends_agent_and_worker(node: GpuNode, hung: bool) -> None:
    """Also during a hung call. A worker that can shuts the driver down."""
    (worker,) = {pid for pid, function in node.driver.calls if function == "nvmlInit"}
    if hung:
        node.driver.hang("nvmlDeviceGetUtilizationRates")
    status, log = node.agent.stop()
    assert status == 0
    assert not Path(f"/proc/{worker}").exists()
    assert hung or (worker, "nvmlShutdown") in node.driver.calls or NOT_IN_ORDER in log


def test_sigterm_goes_first(node: GpuNode) -> None:
    """The release of a hung driver takes time, which the end of the agent does not have."""
    process = node.agent.process
    os.kill(process.pid, signal.SIGSTOP)  # so that all of them wait when it goes on
    for each in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        process.send_signal(each)
    status, log = node.agent.stop(signal.SIGCONT)
    assert status == 0
    assert "stopping on SIGTERM" in log
    assert "the GPU driver is released" not in log


def test_end_takes_less_than_five_seconds() -> None:
    """Every wait at the end has a limit, even if everything hangs at once."""
    server_poll_seconds = 0.5  # of socketserver's serve_forever
    of_agent = STOP_SECONDS + OTLP_STOP_SECONDS + server_poll_seconds + FLUSH_SECONDS
    assert END_SECONDS + KILL_SECONDS + of_agent < 5.0


def test_worker_ends_with_a_killed_agent(node: GpuNode) -> None:
    """No process keeps the driver in use."""
    (worker,) = {pid for pid, function in node.driver.calls if function == "nvmlInit"}
    os.kill(node.agent.process.pid, signal.SIGKILL)
    until(lambda: not _running(worker), "the worker has ended")
    assert (worker, "nvmlShutdown") in node.driver.calls


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
