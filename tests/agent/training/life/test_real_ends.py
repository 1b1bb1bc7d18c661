"""Jobs that really end: ranks under torchrun with restarts, and a rank that the kernel kills."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.node_events import NodeEvents
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.kernel_log import KernelLogCollector
from rankwatch_agent.sources.xid import XidCounter, load_table
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.life import attempts
from rankwatch_agent.training.life.attempts import Attempt

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TRAINER = """
import os, pathlib, signal, sys, time
import rankwatch

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
together = attempt < 2  # nobody waits for a peer in the last attempt, so it need not import torch
deadline = time.monotonic() + 100
while not os.path.exists(f"{sys.argv[1]}-seen{attempt}") and time.monotonic() < deadline:
    time.sleep(0.02)  # an agent on a busy machine may look too late
if together:
    import torch, torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record

def main():
    run = rankwatch.start(target_steps=4)
    if together:
        # A store of its own: gloo may find the addresses of the attempt before in the one of torchrun.
        store = f"file://{sys.argv[1]}{attempt}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    with run:
        for step in range(4):
            with run.step():
                if step == 2:
                    time.sleep(1.2)  # the agent looks every second
                    end()
                if together:
                    dist.all_reduce(torch.ones(8))

def end():
    if attempt == 0 and rank == 1:
        raise ValueError("bad batch")
    if attempt == 1 and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt == 2:
        here = [pathlib.Path(f"{sys.argv[1]}-{number}") for number in range(2)]
        here[rank].touch()
        while rank == 1 and not here[0].exists():
            time.sleep(0.05)
        if rank == 1:
            os.kill(os.getppid(), signal.SIGTERM)  # the launcher ends all
        time.sleep(60)

record(main)() if together else main()
"""
ENDS = [
    ("failed", "exception", 1, "ValueError", "bad batch"),
    ("lost", "lost", 0, "", ""),
    ("terminated", None, None, "", ""),
]


def shown(attempt: Attempt) -> tuple[object, ...]:
    found = attempt.end
    return () if found is None else (found.outcome, found.kind, found.rank, found.exception, found.message)


def followed(collector: RanksCollector, until: Callable[[list[Attempt]], bool]) -> list[Attempt]:
    """The attempts of the only run once this holds of them."""
    deadline = time.monotonic() + 100.0
    while True:
        collector.collect()
        found = list(collector.attempts.all().values())
        if until(found):
            return found
        assert time.monotonic() < deadline, [shown(each) for each in found]
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def settled_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test does not wait for what comes 20 s later."""
    monkeypatch.setattr(attempts, "SETTLE_SECONDS", 1.0)


def test_attempts_of_torchrun(tmp_path: Path) -> None:
    """Three attempts of two ranks, each ended by another cause: its rank and its cause are right."""
    (tmp_path / "train.py").write_text(TRAINER)
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path / "boxes"), "OMP_NUM_THREADS": "1"}
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("--max-restarts=2", "--redirects=2", f"--log-dir={tmp_path}"),
        *(str(tmp_path / "train.py"), str(tmp_path / "store")),
    ]
    collector = RanksCollector(directory=tmp_path / "boxes")

    def all_ended(seen: list[Attempt]) -> bool:
        """The ends of an attempt are seen before the next one takes its place."""
        over = sum(len(each.ends) == 2 and not each.living for each in seen)
        (tmp_path / f"store-seen{over}").touch()
        return len(seen) == 3 and seen[-1].end is not None

    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as job,
    ):
        try:
            found = followed(collector, all_ended)
        finally:
            job.kill()
    assert [shown(each) for each in found] == ENDS
    assert [each.restarts for each in found] == [0, 1, 2]
    assert all(each.first_steps.keys() == {0, 1} for each in found)


@contextmanager
def memory_limit(most_bytes: int) -> Iterator[Path]:
    """A cgroup below our own whose processes may use so much memory; its file of processes."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    if "memory" in paths:
        group, limit = Path("/sys/fs/cgroup/memory" + paths["memory"]), "memory.limit_in_bytes"
    else:
        group, limit = Path("/sys/fs/cgroup" + paths.get("", "/")), "memory.max"
    group = group / f"rankwatch-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        try:
            (group / limit).write_text(str(most_bytes))
        except OSError as error:
            pytest.skip(f"no memory can be limited here: {error.strerror}")
        yield group / "cgroup.procs"
    finally:
        deadline = time.monotonic() + 10.0
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


GREEDY = """
import sys, time, rankwatch
run = rankwatch.start(run="job")
with run.step(): pass
time.sleep(1.2)
open(sys.argv[1], "w").write(str(__import__("os").getpid()))
taken = []
while True:
    taken.append(b"x" * (8 << 20))
"""


def test_killed_by_the_kernel(tmp_path: Path) -> None:
    """A cgroup's limit of memory: the attempt ends with the kernel's own line."""
    kernel_log = Path("/dev/kmsg")
    if os.geteuid() != 0 or not os.access(kernel_log, os.R_OK):
        pytest.skip("only root reads the kernel's log")
    events = NodeEvents()
    kernel = KernelLogCollector(
        path=kernel_log,
        procfs=Path("/proc"),
        inventory=GpuInventory(),
        xids=XidCounter(load_table(None)),
        schedule=Schedule(5, 5),
        events=events,
    )
    kernel.collect()
    collector = RanksCollector(directory=tmp_path / "boxes", events=events)
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path / "boxes")}
    with memory_limit(200 << 20) as processes:
        command = [sys.executable, "-c", GREEDY, str(processes)]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as rank:
            try:
                followed(collector, lambda seen: bool(seen))
                rank.wait(60)
            finally:
                rank.kill()
        kernel.collect()
        if rank.returncode != -9:
            pytest.skip(f"the kernel does not kill here: status {rank.returncode}")
    (attempt,) = followed(collector, lambda seen: seen[-1].end is not None)
    assert attempt.end is not None
    assert (attempt.end.outcome, attempt.end.kind) == ("failed", "host_out_of_memory")
    assert attempt.end.message.startswith(f"Memory cgroup out of memory: Killed process {rank.pid} (python")
