"""Breaks and repairs every source of a GPU node in turn, under one running agent.

They are kubelet, SLURM's job map, dcgm-exporter, an OTLP endpoint, and what a GPU node has itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from rankwatch_agent.sources.rdma import STATE_RETRY_SECONDS
from support.agent.process import DEADLINE_SECONDS, fetch, until
from support.gpu.node import COLLECTORS, GpuNode, gpu_node
from support.gpu.nvml import FakeDriver, nvml_library
from support.servers.otlp import OtlpReceiver, otlp_receiver
from support.servers.receiver import Mode
from support.sources.dcgm import DcgmExporter, dcgm_exporter
from support.sources.kubelet import Kubelet, devices, kubelet, pod

__all__ = ["nvml_library"]
pytestmark = pytest.mark.process

WHOLE = f"{COLLECTORS},pods,slurm,dcgm,ethtool"
DEADLINES = "gpu=4,pods=4,dcgm=4"
"""Of those that tests let hang, in seconds: short enough to wait for, long enough for a busy machine."""
FIELDS = "DCGM_FI_PROF_NVLINK_TX_BYTES,DCGM_FI_DEV_POWER_USAGE"
DCGM_WATTS = 1.0
"""The power by DCGM, which NVML also has."""


class WholeNode(NamedTuple):
    """The node with all sources of its agent."""

    gpus: GpuNode
    kubelet: Kubelet
    job_map: Path
    dcgm: DcgmExporter
    otlp: OtlpReceiver

    def uuid(self, index: int) -> str:
        uuid: str = self.gpus.driver.node["gpus"][index]["uuid"]
        return uuid

    def body(self) -> bytes:
        """Returns the answer of a healthy dcgm-exporter: a field of its own, and one that NVML has."""
        lines = (
            f'{field}{{gpu="0",UUID="{self.uuid(0)}",device="nvidia0"}} {DCGM_WATTS}\n'
            for field in FIELDS.split(",")
        )
        return "".join(lines).encode()

    def allocation(self) -> bytes:
        """Returns the answer of a healthy kubelet: a pod with the first GPU."""
        return pod("train-0", devices("nvidia.com/gpu", self.uuid(0)))


@contextmanager
def whole_node(directory: Path, driver: FakeDriver) -> Iterator[WholeNode]:
    """Runs the node for the length of the block."""
    job_map = directory / "jobs"
    job_map.mkdir()
    for index in range(2):
        (job_map / str(index)).write_text(f"{700 + index}\n")
    with kubelet(directory) as pods, dcgm_exporter() as dcgm, otlp_receiver() as otlp:
        flags = ["--kubelet-socket", str(pods.socket), "--slurm-job-map", str(job_map)]
        flags += ["--dcgm-endpoint", dcgm.url, "--dcgm-fields", FIELDS]
        flags += ["--otlp-endpoint", otlp.url, "--otlp-interval-seconds", "0.5"]
        flags += ["--otlp-timeout-seconds", "1", "--deadlines-seconds", DEADLINES]
        with gpu_node(directory, driver, *flags, collectors=WHOLE) as gpus:
            node = WholeNode(gpus, pods, job_map, dcgm, otlp)
            pods.answer, dcgm.body = node.allocation(), node.body()
            yield node


Break = Callable[[WholeNode], AbstractContextManager[object]]

OF_EACH = {
    "host": "rankwatch_host_cpus",
    "clock": "rankwatch_host_clock_synchronised",
    "network": "rankwatch_network_mtu_bytes",
    "tcp": "rankwatch_tcp_sent_segments_total",
    "rdma": "rankwatch_rdma_receive_bytes_total",
    "gpu": "rankwatch_gpu_temperature_celsius",
    "gpu_driver": "rankwatch_gpus_expected",
    "xid": "rankwatch_gpu_xid_events_total",
    "kernel_log": "rankwatch_kernel_log_events_total",
    "affinity": "rankwatch_gpu_nic_affinity_info",
    "pods": "rankwatch_gpu_pod_info",
    "slurm": "rankwatch_gpu_slurm_info",
    "dcgm": "rankwatch_dcgm_field",
    "otlp": "rankwatch_otlp_batches_total",
}
"""One series of each source."""
ALL = frozenset(OF_EACH.values())
PATIENCE_SECONDS = DEADLINE_SECONDS + STATE_RETRY_SECONDS
"""The state of an RDMA port that failed three times in a row is left alone for a while."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[WholeNode]:
    """One agent for all tests that leave the node as they found it."""
    directory = tmp_path_factory.mktemp("whole")
    with whole_node(directory, FakeDriver(directory, nvml_library)) as running:
        yield running


@pytest.fixture
def node(shared: WholeNode) -> WholeNode:
    """The agent, once it exports everything."""
    until(lambda: complete(shared), "every source is exported", seconds=PATIENCE_SECONDS)
    return shared


def complete(node: WholeNode) -> bool:
    """Whether every source is exported, and every RDMA port: after a failure they come back one by one."""
    lines = node.gpus.agent.page()
    ports = (f'{OF_EACH["rdma"]}{{device="mlx5_{index}",' in lines for index in range(8))
    return node.gpus.families() >= ALL and all(ports)


@contextmanager
def without(path: Path) -> Iterator[None]:
    """A file stands where a directory was, a directory where a file was."""
    aside = path.with_name(f"{path.name}.aside")
    was_directory = path.is_dir()
    path.rename(aside)
    path.touch() if was_directory else path.mkdir()
    try:
        yield
    finally:
        path.unlink() if was_directory else path.rmdir()
        aside.rename(path)


@contextmanager
def fifos(*paths: Path) -> Iterator[None]:
    """Files whose opening waits for ever for another end."""
    for path in paths:
        path.rename(path.with_name(f"{path.name}.aside"))
        os.mkfifo(path)
    try:
        yield
    finally:
        for path in paths:
            path.unlink()
            path.with_name(f"{path.name}.aside").rename(path)


@contextmanager
def repaired(break_it: Callable[[], object], repair: Callable[[], object]) -> Iterator[None]:
    break_it()
    try:
        yield
    finally:
        repair()


def lost_driver(node: WholeNode) -> AbstractContextManager[None]:
    return repaired(node.gpus.driver.unload, node.gpus.driver.load)


def sysfs(node: WholeNode, *parts: str) -> Path:
    return node.gpus.tree.sysfs.joinpath(*parts)


def files_below(directory: Path) -> list[Path]:
    return [each for each in sorted(directory.rglob("*")) if each.is_file() and not each.is_symlink()]


def hung_devices(node: WholeNode, kind: str) -> AbstractContextManager[None]:
    """The files of all devices of a class hang."""
    paths = (each.resolve() for each in sysfs(node, f"class/{kind}").iterdir())
    return fifos(*(file for path in paths for file in files_below(path)))


BREAKS: dict[str, tuple[Break, frozenset[str]]] = {
    # What is broken, and the sources that may lose their series by it.
    "network cannot be read": (
        lambda node: without(node.gpus.tree.procfs / "net/dev"),
        frozenset({"network"}),
    ),
    "interfaces hang": (lambda node: hung_devices(node, "net"), frozenset({"network"})),
    "RDMA files hang": (lambda node: hung_devices(node, "infiniband"), frozenset({"rdma"})),
    "RDMA cannot be listed": (lambda node: without(sysfs(node, "class/infiniband")), frozenset({"rdma"})),
    "PCI bus cannot be listed": (
        lambda node: without(sysfs(node, "bus/pci/devices")),
        frozenset({"gpu_driver", "affinity"}),
    ),
    "driver unloaded": (lost_driver, frozenset({"gpu"})),
    "kernel log cannot be read": (lambda node: without(node.gpus.kernel_log), frozenset({"kernel_log"})),
    "kubelet hangs": (
        lambda node: repaired(node.kubelet.hang, node.kubelet.answer_again),
        frozenset({"pods"}),
    ),
    "kubelet answers garbage": (
        lambda node: patch.object(node.kubelet, "answer", b"\xff\xff\xff garbage"),
        frozenset({"pods"}),
    ),
    "job map cannot be listed": (lambda node: without(node.job_map), frozenset({"slurm"})),
    "dcgm-exporter: hang": (lambda node: patch.object(node.dcgm, "mode", "hang"), frozenset({"dcgm"})),
    "dcgm-exporter: error": (lambda node: patch.object(node.dcgm, "mode", "error"), frozenset({"dcgm"})),
}


LEFT_OUT = {"interfaces hang", "RDMA files hang"}
"""A device whose files do not answer is left out, and its collector goes on with the others."""


@pytest.mark.parametrize("what", BREAKS)
def test_broken_source(node: WholeNode, what: str) -> None:
    """Each source in turn: its collector says so, all others stay, and it comes back."""
    act, sources = BREAKS[what]
    gone = {OF_EACH[each] for each in sources}
    with act(node):
        until(lambda: not gone & node.gpus.families(), f"{', '.join(sorted(gone))} are gone")
        if what not in LEFT_OUT:
            until(lambda: all(node.gpus.state(each) != "ok" for each in sources), "they say so")
        for _ in range(5):
            assert ALL - gone <= node.gpus.families()
    until(lambda: complete(node), "all is well again", seconds=PATIENCE_SECONDS)


def test_dcgm_relays_only_what_nvml_lacks(node: WholeNode) -> None:
    """Both have the power, which is exported once, from NVML."""
    name = f'rankwatch_gpu_power_watts{{gpu="{node.uuid(0)}",node="n"}}'
    assert node.gpus.metrics()[name] > DCGM_WATTS
    lines = node.gpus.agent.page().splitlines()
    assert sum(line.startswith(name) for line in lines) == 1
    with lost_driver(node):
        until(lambda: node.gpus.metrics().get(name) == DCGM_WATTS, "DCGM's value stands in")
    until(lambda: node.gpus.metrics().get(name, 0.0) > DCGM_WATTS, "NVML's is back")


def test_hung_otlp_endpoint(node: WholeNode) -> None:
    """It costs batches, but no series of a scrape."""
    dropped = 'rankwatch_otlp_batches_total{node="n",outcome="dropped"}'
    before = node.gpus.metrics().get(dropped, 0.0)
    with patch.object(node.otlp, "mode", Mode.HANG):
        until(lambda: node.gpus.metrics()[dropped] > before, "batches are dropped")
        assert node.gpus.families() >= ALL
    sent = 'rankwatch_otlp_batches_total{node="n",outcome="sent"}'
    before = node.gpus.metrics()[sent]
    until(lambda: node.gpus.metrics()[sent] > before, "exports go on")


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"])
def test_failing_nvml_call(node: WholeNode, function: str) -> None:
    """The GPU stays up, and the other GPUs keep all series."""
    driver = node.gpus.driver
    of_function = {
        "nvmlDeviceGetPowerUsage": "rankwatch_gpu_power_watts",
        "nvmlDeviceGetUtilizationRates": "rankwatch_gpu_utilization_ratio",
    }
    lost = f'{of_function[function]}{{gpu="{node.uuid(3)}",node="n"}}'
    before = gpu_samples(node)
    up = f'rankwatch_gpu_up{{gpu="{node.uuid(3)}",node="n"}}'

    def costs_its_value_alone() -> bool:
        now = gpu_samples(node)
        return lost not in now and up in now and all(node.uuid(3) in each for each in before - now)

    with repaired(
        lambda: driver.fail(function, 999, 3),
        lambda: driver.update(lambda each: each["gpus"][3]["errors"].clear()),
    ):
        until(costs_its_value_alone, "the value is gone, and no other GPU's")
    until(lambda: lost in node.gpus.metrics(), "it is back")


def gpu_samples(node: WholeNode) -> set[str]:
    """Names and labels of what NVML tells of every GPU, without what takes two readings."""
    return {
        name
        for name in node.gpus.metrics()
        if name.startswith("rankwatch_gpu_") and "activity" not in name and "throughput" not in name
    }


@pytest.mark.parametrize(
    ("directory", "family", "label"),
    [
        ("class/infiniband/mlx5_3/ports/1/counters", "rankwatch_rdma_receive_bytes_total", "mlx5_3"),
        ("class/net/ib3/mtu", "rankwatch_network_mtu_bytes", "ib3"),
    ],
)
def test_unreadable_port(node: WholeNode, directory: str, family: str, label: str) -> None:
    """All other devices keep all series."""
    path = sysfs(node, directory)
    with without(path.parent.resolve() / path.name):

        def devices() -> set[str]:
            return {each for each in node.gpus.metrics() if each.startswith(f"{family}{{")}

        until(lambda: not any(f'"{label}"' in each for each in devices()), "the broken one is gone")
        assert {f"{label[:-1]}{index}" for index in range(8) if index != 3} <= {
            each.partition('device="')[2].partition('"')[0] for each in devices()
        }
        assert node.gpus.families() >= ALL
    until(lambda: any(f'"{label}"' in each for each in devices()), "it is back")


def test_everything_broken(tmp_path: Path, nvml_library: Path) -> None:
    """The probes answer, each collector reports its failure, and SIGTERM ends the agent."""
    with whole_node(tmp_path, FakeDriver(tmp_path, nvml_library)) as node, ExitStack() as broken:
        until(lambda: node.gpus.families() >= ALL, "every source is exported")
        (worker,) = {pid for pid, function in node.gpus.driver.calls if function == "nvmlInit"}
        node.gpus.driver.hang("nvmlDeviceGetPowerUsage")
        node.otlp.mode = Mode.HANG
        unbroken = set(LEFT_OUT) | {"driver unloaded", "kubelet answers garbage", "dcgm-exporter: error"}
        for what in [each for each in BREAKS if each not in unbroken]:
            broken.enter_context(BREAKS[what][0](node))
        whole = {OF_EACH[each] for each in ("host", "clock", "tcp", "xid", "otlp")}
        until(lambda: not (ALL - whole) & node.gpus.families(), "the broken ones are gone")
        assert whole <= node.gpus.families()
        assert fetch(node.gpus.agent.address, "/healthz").status == 200
        assert fetch(node.gpus.agent.address, "/readyz/gpus").status == 503
        status, log = node.gpus.agent.stop()
        assert status == 0
        assert "Traceback" not in log
        with suppress(OSError):
            assert Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
