"""The real agent on a fixed node serves the golden file, and promtool accepts it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.agent.process import agent_process, fetch, page, until
from support.gpu.nvml import FakeDriver, nvml_library
from support.sources.kubelet import devices, kubelet, pod
from support.sources.node_tree import build_node

__all__ = ["nvml_library"]

pytestmark = pytest.mark.process

FIXTURES = Path(__file__).parent / "fixtures"

_CHANGING = (
    "process_",
    "rankwatch_agent_info",
    "rankwatch_collector_runs_total",
    "rankwatch_collector_read_errors_total",
    "_duration_seconds{",
    "_timestamp_seconds{",
    "rankwatch_host_time_seconds",
)
"""Samples whose value is of the moment or of the version."""
_ONCE = 3600.0
_AGAIN = 0.5
KERNEL_LOG = """\
6,1,1000000,-;nvidia: loading out-of-tree module taints kernel.
4,2,2000000,-;NVRM: Xid (PCI:0000:2b:00): 94, pid=4711, name=python, Contained: SM (0x1).
3,3,3000000,-;mlx5_core 0000:19:00.0: Detected insufficient power on the PCIe slot (27W).
3,4,4000000,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO
"""

Start = Callable[[Path, Path], AbstractContextManager[str]]
"""Given a directory and the driver's library: the address of an agent that has read everything."""


@contextlib.contextmanager
def host(directory: Path, library: Path) -> Iterator[str]:
    """A machine without GPUs; every collector runs exactly once."""
    collectors = "host", "network", "tcp", "processes", "mounts"
    flags = {
        "--procfs": str(FIXTURES / "proc"),
        "--sysfs": str(FIXTURES / "sys"),
        "--collectors": ",".join(collectors),
        "--intervals-seconds": ",".join(f"{name}={_ONCE}" for name in collectors),
    }
    with _agent(directory, flags, environ={}, complete=()) as address:
        yield address


@contextlib.contextmanager
def gpu_node(directory: Path, library: Path) -> Iterator[str]:
    """Eight GPUs, eight RDMA ports, a kernel log, a kubelet with a pod on two of the GPUs."""
    driver, tree = FakeDriver(directory, library), build_node(directory / "node")
    (directory / "kmsg").write_text(KERNEL_LOG)
    again = "gpu", "gpu_driver", "xid", "kernel_log", "pods", "affinity"  # most wait for the first GPU
    intervals = dict.fromkeys(again, _AGAIN) | dict.fromkeys(("network", "tcp", "rdma"), _ONCE)
    flags = {
        "--procfs": str(tree.procfs),
        "--sysfs": str(tree.sysfs),
        "--kernel-log": str(directory / "kmsg"),
        "--kubelet-socket": str(directory / "kubelet.sock"),
        "--collectors": ",".join(intervals),
        "--intervals-seconds": ",".join(f"{name}={seconds}" for name, seconds in intervals.items()),
    }
    complete = (
        "rankwatch_gpu_activity_ratio{",  # needs a second reading
        "rankwatch_gpu_pod_info{",
        "rankwatch_gpu_xid_errors_total{",
        "rankwatch_gpu_nic_affinity_info{",
        'rankwatch_gpus_visible{cluster="test",node="node-1"} 8.0',
    )
    uuids = [gpu["uuid"] for gpu in driver.node["gpus"]]
    with kubelet(directory) as running:
        running.answer = pod("trainer-0", devices("nvidia.com/gpu", *uuids[:2]))
        with _agent(directory, flags, environ=driver.environ, complete=complete) as address:
            yield address


@contextlib.contextmanager
def _agent(
    directory: Path, flags: dict[str, str], *, environ: dict[str, str], complete: tuple[str, ...]
) -> Iterator[str]:
    words = [word for flag in flags.items() for word in flag]
    words += ["--node", "node-1", "--cluster", "test"]
    with agent_process(directory, *words, environ=environ) as running:
        until(lambda: fetch(running.address, "/readyz").status == 200, "the agent is ready")
        for text in complete:
            until(lambda text=text: text in running.page(), f"{text} is exported")
        yield running.address


@pytest.fixture(scope="module", params=[host, gpu_node], ids=["host", "gpu_node"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nvml_library: Path
) -> Iterator[tuple[str, Path]]:
    """An agent's address, and the golden file of its node."""
    start: Start = request.param
    with start(tmp_path_factory.mktemp("agent"), nvml_library) as address:
        yield address, FIXTURES / f"{request.param.__name__}.golden"


def test_metrics_match_the_golden_file(node: tuple[str, Path], request: pytest.FixtureRequest) -> None:
    """`pytest tests/agent --rewrite-golden` rewrites the file."""
    address, golden = node
    lines = [line for line in page(address).splitlines() if not _changes(line)]
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite-golden", default=False):
        golden.write_text(text)
    assert text == golden.read_text()


def test_promtool_check(node: tuple[str, Path]) -> None:
    """Names, types and helps follow the rules of Prometheus."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    body = page(node[0]).encode()
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def _changes(line: str) -> bool:
    if line.startswith("#"):
        return "process_" in line
    return any(part in line for part in _CHANGING)
