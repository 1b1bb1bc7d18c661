"""A whole GPU node for the agent to watch: 8 GPUs by a fake driver, 8 RDMA ports, 8 ranks, a kubelet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.gpu.nvml import FakeDriver, build_library
from support.gpu.nvml_node import hopper_node, running
from support.sources.kubelet import Kubelet, devices, kubelet, pod
from support.sources.node_tree import build_node

from .errors import BenchError
from .processes import rankwatch_agent
from .step_load import step_load

GPUS = 8
STEPS_PER_SECOND = 2.0
"""A step of half a second: quick for a model that needs eight GPUs."""


class Watched(NamedTuple):
    """An exporter that runs: its process id, and HOST:PORT."""

    pid: int
    address: str


@contextmanager
def watched_node(directory: Path) -> Iterator[tuple[Watched, FakeDriver]]:
    """An agent with every collector it has, over a node under load, and its driver. Raises BenchError."""
    if shutil.which("cc") is None:
        raise BenchError("could not build the fake driver: no C compiler (cc)")
    driver = FakeDriver(directory, build_library(directory), running(hopper_node(GPUS)))
    node = build_node(directory / "node", gpus=GPUS, ports=GPUS)
    log = directory / "kmsg"
    log.write_text("6,1,1000000,-;nvidia: loading NVIDIA UNIX x86_64 Kernel Module\n")
    flags = ["--procfs", str(node.procfs), "--sysfs", str(node.sysfs), "--kernel-log", str(log)]
    flags += ["--kubelet-socket", str(directory / "kubelet.sock"), "--checkpoint-paths", str(directory)]
    with (
        kubelet(directory) as pods,
        step_load(directory, ranks=GPUS, steps_per_second=STEPS_PER_SECOND) as blackboxes,
        rankwatch_agent(directory, blackboxes, *flags, variables=driver.environ) as (pid, address),
    ):
        _place(pods, driver)
        yield Watched(pid, address), driver


def _place(pods: Kubelet, driver: FakeDriver) -> None:
    """One pod on each GPU."""
    pods.answer = b"".join(
        pod(f"worker-{number}", devices("nvidia.com/gpu", gpu["uuid"]))
        for number, gpu in enumerate(driver.node["gpus"])
    )
