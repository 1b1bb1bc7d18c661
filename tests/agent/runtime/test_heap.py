"""Memory of large objects that are gone goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys, threading
from pathlib import Path
from rankwatch_agent.agent import give_back_what_is_free
if sys.argv[1] == "given back":
    give_back_what_is_free()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

def work():
    for _ in range(3):
        kept = []
        for number in range(40):
            kept.append([bytes(1 << 20), bytes(1000)])
            kept[-1].pop(0)
        held.append(kept[-1])

held, before = [], resident()
for _ in range(8):
    threads = [threading.Thread(target=work) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
print(resident() - before)
"""


@pytest.mark.process
def test_large_objects() -> None:
    """Threads that have used them leave less than without the call."""
    kib = {}
    for how in ("given back", "left"):
        command = [sys.executable, "-c", _PROGRAM, how]
        kib[how] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert kib["given back"] < kib["left"]
