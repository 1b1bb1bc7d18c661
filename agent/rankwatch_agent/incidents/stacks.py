"""The Python stacks of a rank: py-spy's, where it is installed and may look at the process.

It is told not to pause the process. What it then shows may be torn where the process goes on meanwhile; one
that stands does not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.error import EvidenceError
from rankwatch_agent.incidents.limited_process import Limits, run_limited

PROGRAM = "py-spy"
LIMITS = Limits(seconds=10.0, output_bytes=1 << 20, memory_bytes=2 << 30)


def find_py_spy(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where py-spy lies on PATH; None where it is not installed."""
    return shutil.which(PROGRAM, path=environ.get("PATH"))


def python_stacks(program: str, pid: int, *, limits: Limits = LIMITS) -> bytes:
    """What py-spy prints of a process; raises EvidenceError where it is not allowed, fails or hangs."""
    ended = run_limited([program, "dump", "--nonblocking", "--pid", str(pid)], limits)
    if ended.problem:
        raise EvidenceError(EvidenceFault.STACKS, ended.problem)
    if not ended.output.strip():
        raise EvidenceError(EvidenceFault.STACKS, f"{PROGRAM} said nothing")
    return ended.output
