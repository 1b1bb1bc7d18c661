"""The memory of a process, by the kernel's account."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_SECONDS = 10.0
"""Of the processor, for one input."""
MOST_BYTES = 512 << 20
"""By which one input may increase the memory of its process."""


def status_bytes(process: int | str, name: str) -> int:
    """A size in /proc/PROCESS/status, such as VmRSS."""
    with open(f"/proc/{process}/status") as file:
        line = next(each for each in file if each.startswith(name))
    return int(line.split()[1]) << 10


def peak_reset(process: int | str) -> None:
    """Let its peak (VmHWM) count from now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


@contextmanager
def watched(process: int) -> Iterator[None]:
    """Raises AssertionError if another process needs too much within the block."""
    peak_reset(process)
    before = status_bytes(process, "VmRSS")
    yield
    size = status_bytes(process, "VmHWM") - before
    if size > MOST_BYTES:
        raise AssertionError(f"its process needs {size >> 20} MiB")
