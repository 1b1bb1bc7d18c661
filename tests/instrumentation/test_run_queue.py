"""The training thread's wait for a CPU is sampled seldom, for that thread alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rankwatch.blackbox.writer import Writer
from rankwatch.hooks import SAMPLE_SECONDS, RunQueueWait
from rankwatch.identity import Identity
from support.training.blackbox import now


class Kernel:
    """A /proc that holds the run queue of this thread, and a clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / str(os.getpid()) / "task" / str(threading.get_native_id()) / "schedstat"
        self.file.parent.mkdir(parents=True)
        self.now = 100.0
        self.waits(3.0)

    def waits(self, seconds: float) -> None:
        self.file.write_text(f"5000000000 {seconds * 1e9:.0f} 17\n")

    def clock(self) -> float:
        return self.now


def share(writer: Writer) -> float | None:
    return now(writer.path).cpu_wait_share


def test_wait_since_the_start_of_the_run(tmp_path: Path) -> None:
    """What the thread waited before does not count. The file is read once a second at most."""
    kernel, writer = Kernel(tmp_path / "proc"), Writer(tmp_path, Identity(run="r"), phases={})
    wait = RunQueueWait(writer, procfs=kernel.root, clock=kernel.clock)
    kernel.waits(3.5)
    kernel.now += SAMPLE_SECONDS / 2
    wait.resolve()
    assert share(writer) is None
    kernel.now += SAMPLE_SECONDS * 1.5
    wait.resolve()
    assert share(writer) == pytest.approx(0.25)
    kernel.waits(9.0)
    kernel.now += SAMPLE_SECONDS / 2
    wait.resolve()
    assert share(writer) == pytest.approx(0.25)


def test_thread_that_has_ended(tmp_path: Path) -> None:
    """The last sample stays."""
    kernel, writer = Kernel(tmp_path / "proc"), Writer(tmp_path, Identity(run="r"), phases={})
    wait = RunQueueWait(writer, procfs=kernel.root, clock=kernel.clock)
    kernel.now += 2.0 * SAMPLE_SECONDS
    kernel.waits(4.0)
    wait.resolve()
    kernel.file.unlink()
    kernel.now += 2.0 * SAMPLE_SECONDS
    wait.resolve()
    wait.resolve()
    assert share(writer) == pytest.approx(0.5)


def test_kernel_that_does_not_measure(tmp_path: Path) -> None:
    """The caller is told."""
    writer = Writer(tmp_path, Identity(run="r"), phases={})
    with pytest.raises(OSError):
        RunQueueWait(writer, procfs=tmp_path / "nothing")
