"""Part `node`: CPU, memory and scrapes of an agent on a whole GPU node, beside node_exporter.

`python -m tests.bench.soak` is the long form.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.source import source_of
from support.gpu.nvml import FakeDriver, build_library
from support.gpu.nvml_node import hopper_node, running
from support.sources.kubelet import Kubelet, devices, kubelet, pod
from support.sources.node_tree import build_node

from .exporters import (
    LATENCY_SCRAPES,
    WINDOW_INTERVAL_SECONDS,
    Exporter,
    Limits,
    Window,
    node_exporter,
    node_exporter_installed,
    peer_note,
    peer_rows,
    usage_rows,
    watch_window,
)
from .process_usage import MIB, Scrape, mib, ms, scrape
from .processes import rankwatch_agent, temporary_directory
from .rank_load import step_load
from .result import BenchError, Result, Row, limited, quantile

GPUS = 8
STEPS_PER_SECOND = 2.0
"""A step of half a second: quick for a model that needs eight GPUs."""


LIMITS = Limits(cores=0.02, resident_bytes=96 * MIB, scrape_seconds=0.040)
GROWTH_BYTES = 1 * MIB
"""Largest difference between the first and the last third of a window: a heap always moves a little."""

HANG_INTERVALS = 3.0
"""Within so many intervals of the GPU collector a hung driver call must be reported."""

WINDOW_SECONDS = 120.0
WARMUP_SECONDS = 45.0
"""Every collector but the slowest has run twice by then."""

GPU_INTERVAL_SECONDS = source_of("gpu").schedule.interval_seconds
HANG_PAUSE_SECONDS = 0.25
HANG_PATIENCE_INTERVALS = 6.0
_UNRESPONSIVE = metric("rankwatch_gpu_driver_unresponsive_total").name
_DRIVER_PREFIXES = (
    "rankwatch_gpu_",  # all values from NVML
    "rankwatch_collector_last_success",
)


class Hang(NamedTuple):
    """What a scraper saw of a driver call that never returns."""

    intervals: float
    """From the injection to the report, in intervals of the GPU collector."""
    scrape_seconds: list[float]
    families_lost: frozenset[str]
    """Of other collectors, missing in any scrape meanwhile."""


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if an exporter cannot be run, or does not see its node."""
    return measure_window(
        window_seconds=15.0 if quick else WINDOW_SECONDS, warmup_seconds=15.0 if quick else WARMUP_SECONDS
    )


def measure_window(*, window_seconds: float, warmup_seconds: float) -> Result:
    """The agent on a whole node, and node_exporter if it is installed, over the same window."""
    with temporary_directory() as name:
        directory = Path(name)
        with watched_node(directory) as (agent, driver), ExitStack() as stack:
            exporters = {"agent": agent}
            if node_exporter_installed():
                exporters["peer"] = stack.enter_context(node_exporter(directory))
            windows = watch_window(exporters, warmup_seconds=warmup_seconds, window_seconds=window_seconds)
            hang = watch_hang(agent, driver)
    _check_seen(windows["agent"])
    peer, seconds = windows.get("peer"), windows["agent"].seconds
    return Result(
        title=f"Node: {GPUS} GPUs, {GPUS} RDMA ports, {GPUS} ranks at {STEPS_PER_SECOND:g} steps/s",
        rows=(
            *usage_rows(windows["agent"], LIMITS),
            *_growth_rows(windows["agent"]),
            *_hang_rows(hang),
            *(peer_rows(peer, LIMITS) if peer else ()),
        ),
        notes=(
            f"{seconds:.0f} s after a warm-up; one scrape each {WINDOW_INTERVAL_SECONDS:g} s "
            f"(OpenMetrics, gzip); then {LATENCY_SCRAPES} scrapes for the latency. "
            "All collectors; agent and worker added.",
            "The driver is a fake library under the real pynvml: the time of a real one comes on top.",
            "Growth is the median of the last third of the window less that of the first.",
            peer_note(known=peer is not None),
        ),
        samples={name: window.as_json() for name, window in windows.items()},
    )


def _check_seen(window: Window) -> None:
    """Raises BenchError if the agent missed the load: nothing would be measured."""
    for name, least in (
        ("rankwatch_gpu_up", GPUS),
        ("rankwatch_rdma_port_up", GPUS),
        ("rankwatch_gpu_pod_info", GPUS),
        ("rankwatch_blackboxes", GPUS),
    ):
        seen = window.last.total(metric(name).name)
        if seen < least:
            raise BenchError(f"could not measure the agent: {name} adds up to {seen:g}, expected {least}")


@contextmanager
def watched_node(directory: Path) -> Iterator[tuple[Exporter, FakeDriver]]:
    """An agent with all collectors on a node under load, and the driver of the node. Raises BenchError."""
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
        rankwatch_agent(directory, blackboxes, *flags, variables=driver.environ) as agent,
    ):
        _place(pods, driver)
        yield Exporter(*agent), driver


def _place(pods: Kubelet, driver: FakeDriver) -> None:
    """One pod on each GPU."""
    pods.answer = b"".join(
        pod(f"worker-{number}", devices("nvidia.com/gpu", gpu["uuid"]))
        for number, gpu in enumerate(driver.node["gpus"])
    )


def watch_hang(exporter: Exporter, driver: FakeDriver) -> Hang:
    """Let a driver call hang, and scrape until it is reported. Raises BenchError if it never is."""
    before = scrape(exporter.address)
    others = _other_families(before)
    driver.hang("nvmlDeviceGetPowerUsage", 3)
    began = time.monotonic()
    taken: list[float] = []
    lost: set[str] = set()
    while True:
        seen = scrape(exporter.address)
        taken.append(seen.seconds)
        lost |= others - _other_families(seen)
        intervals = (time.monotonic() - began) / GPU_INTERVAL_SECONDS
        if seen.total(_UNRESPONSIVE) > before.total(_UNRESPONSIVE):
            return Hang(intervals, taken, frozenset(lost))
        if intervals > HANG_PATIENCE_INTERVALS:
            raise BenchError(f"a hung driver call was not reported within {intervals:.1f} intervals")
        time.sleep(HANG_PAUSE_SECONDS)


def _other_families(seen: Scrape) -> set[str]:
    """Families that do not come from the driver."""
    names = {line.partition("{")[0].partition(" ")[0] for line in seen.text.splitlines() if line[:1] != "#"}
    return {name for name in names if name and not name.startswith(_DRIVER_PREFIXES)}


def _growth_rows(window: Window) -> list[Row]:
    rows = [limited("growth of memory", window.growth("proportional_bytes"), GROWTH_BYTES, mib)]
    for what in ("threads", "file_descriptors"):
        values = [getattr(each, what) for each in window.footprints]
        extent, name = f"{min(values)} to {max(values)}", what.replace("_", " ")
        rows.append(limited(f"growth of {name}", window.growth(what), 0, "{:g}".format, extent))
    return rows


def _hang_rows(hang: Hang) -> list[Row]:
    scrapes = hang.scrape_seconds
    spread = f"p50 {ms(quantile(scrapes, 0.5))}, longest {ms(max(scrapes))} of {len(scrapes)}"
    lost = len(hang.families_lost)
    return [
        limited("a hung driver call is reported, intervals", hang.intervals, HANG_INTERVALS, "{:.1f}".format),
        limited("scrape meanwhile, p99", quantile(scrapes, 0.99), LIMITS.scrape_seconds, ms, spread),
        limited(
            "other families lost meanwhile", lost, 0, "{:g}".format, ", ".join(sorted(hang.families_lost))
        ),
    ]
