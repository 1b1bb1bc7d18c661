"""Record a healthy run and runs with faults from the real stack: `make record`.

Trainers, agents, Prometheus with the generated rules and Alertmanager run for some minutes; then every
series of Prometheus goes into one file, which the tests read. The agent of the node with GPUs is real too;
its driver is the tests' own library, because the machine has no GPU.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.e2e.monitored_system import MonitoredSystem, monitored_system
from support.gpu.node import COLLECTORS, GpuNode, gpu_node
from support.gpu.nvml import FakeDriver, build_library
from support.gpu.nvml_node import running
from support.recorded.runs import (
    CLUSTER,
    CONFIG,
    CRASHES,
    CRASHING,
    FILE,
    GPU_NODE,
    GPU_RUN,
    INTERVAL_SECONDS,
    LOST_GPU,
    NODE,
    RUNS,
    Recorded,
    to_openmetrics,
)
from support.servers.prometheus import get_json, poll, query
from support.training.ranks import go_on, rank

_SECONDS_BEFORE_FAULT = 60.0
_SECONDS_AFTER_ALERTS = 30.0
_NAMES = (
    *("rankwatch_.+", ".+:rankwatch_.+", "ALERTS", "ALERTS_FOR_STATE", "up", "scrape_.+"),
    "prometheus_rule_evaluation_failures_total",
)
_ALL = f'{{__name__=~"{"|".join(_NAMES)}"}}'
_LONGEST_SECONDS = 900
_PACE = ("--layer-forward-seconds", "0.06", "--layer-backward-seconds", "0.1")
"""Steps of a third of a second: so many ranks share few cores."""
_PRICES = """
[[price]]
gpu_model = "*"
price_per_hour = 2.5
currency = "EUR"
basis = "list"
[[budget]]
run = "*"
amount = 400
currency = "EUR"
basis = "list"
"""
_BYTES_PER_SECOND = "100e6"
"""At which agents verify checkpoints."""
_ON_GPU = """
print("ready", flush=True)
while not Path(directory).with_name("lost").exists():
    steps(1, forward=2.0)
time.sleep(1000)
"""
"""A rank that stands still once a GPU is lost."""
_CRASHES = """
steps(5)
print("ready", flush=True)
sys.stdin.readline()
raise IndexError("shard 7 holds 0 sequences")
"""


@contextmanager
def _gpus(directory: Path, flags: tuple[str, ...]) -> Iterator[GpuNode]:
    """The node with GPUs, and its run with a rank on each."""
    directory.mkdir()
    driver = FakeDriver(directory, build_library(directory))
    driver.update(running)
    own = ("--node", GPU_NODE, "--step-window-seconds", f"{CONFIG.step_window_seconds:g}", *flags)
    collectors = f"ranks,cost,{COLLECTORS}"
    with gpu_node(directory, driver, *own, interval=1.0, collectors=collectors) as node, ExitStack() as ranks:
        world = len(driver.node["gpus"])
        for number, gpu in enumerate(driver.node["gpus"]):
            boxes = directory / "blackboxes"
            here = {"number": number, "world": world, "gpu": gpu["uuid"], "before": _of_class(GPU_RUN)}
            ranks.enter_context(rank(boxes, _ON_GPU, run=GPU_RUN.run, **here))
        yield node


def _play(system: MonitoredSystem, gpus: GpuNode) -> None:
    """Start all runs and wait for the alert of each fault."""
    for each in RUNS:
        if each.ranks:
            settings = {"RANKWATCH_RUN_CLASS": each.run_class, **_plan()}
            system.train(each.run, each.faults, node=NODE, ranks=each.ranks, flags=_PACE, settings=settings)
    started = time.monotonic()
    _crash(system)
    time.sleep(max(_SECONDS_BEFORE_FAULT - (time.monotonic() - started), 0.0))
    (gpus.kernel_log.parent / "lost").touch()
    gpus.driver.xid(LOST_GPU, 79)
    gpus.driver.lose(LOST_GPU)
    for each in RUNS:
        if each.alert:
            system.delivers(each.wanted)
            print(f"{each.run}: {each.wanted}", flush=True)
    time.sleep(_SECONDS_AFTER_ALERTS)


def _of_class(each: Recorded) -> str:
    """Code that a rank runs first."""
    return f"os.environ['RANKWATCH_RUN_CLASS'] = {each.run_class!r}"


def _plan() -> dict[str, str]:
    """What a run says of itself: it is due in a day, and one rank alone makes so many tokens a second."""
    return {"RANKWATCH_DEADLINE": f"{time.time() + 86_400:.0f}", "RANKWATCH_BASELINE_TOKENS_PER_SECOND": "50"}


def _crash(system: MonitoredSystem) -> None:
    """Attempts that all end at the same step. Prometheus sees the start and the end of each."""
    boxes = system.directory / NODE / "blackboxes"
    for _ in range(CRASHES):
        before = time.time() - 0.5  # start times of processes are rounded to ticks
        with rank(boxes, _CRASHES, run=CRASHING.run, before=_of_class(CRASHING)) as process:
            for moment in ("start", "end"):
                series = (
                    f'rankwatch_run_attempt_{moment}_timestamp_seconds{{run="{CRASHING.run}"}} >= {before}'
                )
                what = f"{moment} of an attempt"
                poll(lambda asked=series: bool(query(system.prometheus_url, asked)), 60.0, what)
                if moment == "start":
                    go_on(process)


def _series(url: str) -> list[dict[str, Any]]:
    """All series up to now, at moments that are multiples of the interval."""
    end = int(time.time()) // INTERVAL_SECONDS * INTERVAL_SECONDS
    asked = {
        "query": _ALL,
        "start": f"{end - _LONGEST_SECONDS}",
        "end": f"{end}",
        "step": f"{INTERVAL_SECONDS}",
    }
    series: list[dict[str, Any]] = get_json(f"{url}/api/v1/query_range", asked)["data"]["result"]
    return series


def main() -> int:
    """Write the recording; returns the exit status."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "prices.toml").write_text(_PRICES)
        flags = ("--cluster", CLUSTER, "--price-table", str(directory / "prices.toml"))
        verified = ("--checkpoint-bytes-per-second", _BYTES_PER_SECOND, "--checkpoint-paths", name)
        with (
            _gpus(directory / GPU_NODE, flags) as gpus,
            monitored_system(
                directory, CONFIG, (NODE,), agent_flags=(*flags, *verified), more_agents=(gpus.agent,)
            ) as system,
        ):
            system.cluster = CLUSTER
            _play(system, gpus)
            series = _series(system.prometheus_url)
    lines = list(to_openmetrics(series))
    FILE.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
    print(f"{FILE.name}: {len(series)} series, {len(lines)} samples, {FILE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
