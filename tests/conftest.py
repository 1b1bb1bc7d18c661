"""What holds for every test: limits, the order of files, who shares a worker, and who starts processes.

A test that runs away fails alone and does not take the machine with it.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MEMORY_BYTES = 6 << 30
"""Of data in each process of the tests. RLIMIT_AS would also count what browsers and Go only reserve."""
STARTS_PROCESSES = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""Events of the audit hook."""
COMPILER = "cc"
NVIDIA_DRIVER = Path("/dev/nvidiactl")
GPU_MARK = "mark.gpu"
SHARED = ("tests/e2e/game_day/",)
"""Folders whose tests share servers."""
LONGEST = (
    "tests/e2e/game_day/",
    "tests/alerts/test_rules.py",
    "tests/diagnosis/test_both_forms.py",
    "tests/e2e/test_nodes.py",
    "tests/alerts/test_straggler_rules.py",
    "tests/diagnosis/straggler/test_real_jobs.py",
    "tests/diagnosis/straggler/test_engine.py",
    "tests/alerts/test_gaps.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_traces.py",
    "tests/e2e/test_launchers.py",
    "tests/instrumentation/automatic/test_processes.py",
    "tests/agent/test_whole_node.py",
    "tests/agent/test_gpu_node.py",
    "tests/e2e/test_goodput.py",
    "tests/e2e/test_telemetry.py",
    "tests/agent/incidents/test_slow_ranks.py",
    "tests/e2e/test_zero_code_loops.py",
)
"""Files and folders that take longest, first: what is begun last ends last. Beside the game day stand those
that compute, and no other live jobs: it goes by what ranks do in a second. Each worker takes two at first."""

_unmarked: pytest.Item | None = None
"""The test that runs, if it must not start a process."""


def pytest_configure() -> None:
    """Beyond the limit is a MemoryError, also in children. `timeout` in pyproject.toml limits the time. Where
    there is a GPU, CUDA's libraries need more."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    known = [each for each in (MEMORY_BYTES, hard) if each != resource.RLIM_INFINITY]
    if not NVIDIA_DRIVER.exists():
        resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts jobs in the background like this
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = False  # else each of a thousand processes compiles what it imports
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["RANKWATCH_SUMMARY"] = "0"  # else each rank of a test starts a process when it exits
    os.environ["RANKWATCH_LOG_LINES"] = "0"  # else pytest's own streams are watched
    os.environ["RANKWATCH_TRACKERS"] = "0"  # else each rank 0 starts a thread
    sys.addaudithook(_refuse_processes)


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Only `make test-fast` leaves marked tests out, so an unmarked one would make it slow for everybody.
    The compiler runs once for all tests that read GPUs."""
    if _unmarked is None or event not in STARTS_PROCESSES:
        return
    if not arguments or Path(str(arguments[0])).name != COMPILER:
        raise RuntimeError(f"{_unmarked.nodeid} starts a process: mark it `process`")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` imports only files with such tests: a machine with a GPU may lack what the others need."""
    if config.getoption("markexpr") != "gpu" or collection_path.suffix != ".py":
        return None
    return None if GPU_MARK in collection_path.read_text() else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: to look for garbage in it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep the test in mind, with its fixtures."""
    global _unmarked
    _unmarked = None if item.get_closest_marker("process") else item
    try:
        return (yield)
    finally:
        _unmarked = None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay in one worker, and so do those of a folder that share servers."""
    from xdist.scheduler import LoadFileScheduling

    class SharedServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((each for each in SHARED if nodeid.startswith(each)), super()._split_scope(nodeid))

    return SharedServers(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; all tests of a file stay together."""

    def place(item: pytest.Item) -> int:
        found = (number for number, each in enumerate(LONGEST) if item.nodeid.startswith(each))
        return next(found, len(LONGEST))

    items.sort(key=place)
