"""A GPU node for the real agent process: fake driver, tree of /proc and /sys, kernel log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from support.agent.process import AgentProcess, agent_process
from support.gpu.nvml import FakeDriver
from support.sources.node_tree import NodeTree, build_node

COLLECTORS = "host,clock,network,tcp,rdma,gpu,gpu_driver,xid,kernel_log,affinity"
BOOTED = "6,1,1000000,-;nvidia: loading out-of-tree module taints kernel.\n"


class GpuNode(NamedTuple):
    """The agent, and the parts of the node that it reads."""

    agent: AgentProcess
    driver: FakeDriver
    tree: NodeTree
    kernel_log: Path

    def metrics(self) -> dict[str, float]:
        """Sample (name and labels, as exported) -> value."""
        lines = self.agent.page().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {sample: float(value) for sample, _, value in pairs}

    def families(self) -> set[str]:
        """Names of all exported metrics."""
        return {sample.partition("{")[0] for sample in self.metrics()}

    def state(self, collector: str) -> str:
        """The exported state of a collector."""
        samples = self.metrics()
        for each in ("ok", "failed", "not_applicable"):
            if f'rankwatch_collector_state{{collector="{collector}",node="n",state="{each}"}}' in samples:
                return each
        return "none"


@contextmanager
def gpu_node(
    directory: Path, driver: FakeDriver, *flags: str, interval: float = 0.3, collectors: str = COLLECTORS
) -> Iterator[GpuNode]:
    """An agent whose collectors all run each `interval` seconds."""
    tree, kernel_log = build_node(directory / "node"), directory / "kmsg"
    kernel_log.write_text(BOOTED)
    given = ["--procfs", str(tree.procfs), "--sysfs", str(tree.sysfs), "--kernel-log", str(kernel_log)]
    given += ["--node", "n", "--collectors", collectors]
    given += ["--intervals-seconds", ",".join(f"{name}={interval}" for name in collectors.split(","))]
    with agent_process(directory, *given, *flags, environ=driver.environ) as agent:
        yield GpuNode(agent, driver, tree, kernel_log)
