"""What reads clocks, on a machine that booted half a minute ago.

Monotonic clocks count from the boot. A fixture or a rule that looks ten minutes back then sees a time before
zero, which no box can hold.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

import pytest

from support.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.nightly]

_UPTIME_SECONDS = 30
_READ_CLOCKS = ("tests/agent/training", "tests/diagnosis/run", "tests/instrumentation/test_start.py")


def _young() -> list[str]:
    """The command before a program that gives it a time namespace of its own."""
    offset = int(_UPTIME_SECONDS - time.clock_gettime(time.CLOCK_BOOTTIME))
    return ["unshare", "--time", "--monotonic", str(offset), "--boottime", str(offset), "--"]


def test_young_machine() -> None:
    """The tests of what reads clocks pass shortly after the boot."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    uptime = subprocess.run([*_young(), "cat", "/proc/uptime"], capture_output=True, text=True)
    if uptime.returncode:
        pytest.skip(f"time namespaces are not to be had here: {uptime.stderr.strip()}")
    assert float(uptime.stdout.split()[0]) < 2 * _UPTIME_SECONDS
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    for each in _READ_CLOCKS:  # pytest fails where none is selected
        command = [*_young(), *pytest_, "-m", "not nightly", each]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:]
