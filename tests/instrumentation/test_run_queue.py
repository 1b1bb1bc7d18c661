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
    """A /proc that holds the run queue of this thread, a clock, and the run that samples both."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / str(os.getpid()) / "task" / str(threading.get_native_id()) / "schedstat"
        self.file.parent.mkdir(parents=True)
        self.now = 100.0
        self.waits(3.0)
        self.writer = Writer(directory / "boxes", Identity(run="r"), phases={})
        self.wait = RunQueueWait(self.writer, procfs=directory, clock=lambda: self.now)

    def waits(self, seconds: float) -> None:
        self.file.write_text(f"5000000000 {seconds * 1e9:.0f} 17\n")

    def share(self, after: float) -> float | None:
        """What the box says after so many intervals."""
        self.now += after * SAMPLE_SECONDS
        self.wait.resolve()
        return now(self.writer.path).cpu_wait_share


def test_wait_since_the_start_of_the_run(tmp_path: Path) -> None:
    """What the thread waited before does not count. The file is read once a second at most."""
    kernel = Kernel(tmp_path)
    kernel.waits(3.5)
    assert kernel.share(after=0.5) is None
    assert kernel.share(after=1.5) == pytest.approx(0.25)
    kernel.waits(9.0)
    assert kernel.share(after=0.5) == pytest.approx(0.25)


def test_thread_that_has_ended(tmp_path: Path) -> None:
    """The last sample stays."""
    kernel = Kernel(tmp_path)
    kernel.waits(4.0)
    assert kernel.share(after=2.0) == pytest.approx(0.5)
    kernel.file.unlink()
    assert kernel.share(after=2.0) == kernel.share(after=0.0) == pytest.approx(0.5)


def test_kernel_that_does_not_measure(tmp_path: Path) -> None:
    """The caller is told."""
    writer = Writer(tmp_path, Identity(run="r"), phases={})
    with pytest.raises(OSError):
        RunQueueWait(writer, procfs=tmp_path / "nothing")
