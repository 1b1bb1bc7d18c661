"""A GPU node with every source of an agent: kubelet, SLURM's job map, dcgm-exporter, an OTLP endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.gpu.node import COLLECTORS, GpuNode, gpu_node
from support.gpu.nvml import FakeDriver
from support.servers.otlp import OtlpReceiver, otlp_receiver
from support.sources.dcgm import DcgmExporter, dcgm_exporter
from support.sources.kubelet import Kubelet, devices, kubelet, pod

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
