"""Running a distributed job in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CRASH_OF_GLOO = "terminate called without an active exception"
"""What a thread of gloo prints that now and then crashes a process at its exit, without rankwatch, too."""


def torchrun(
    *arguments: str, ranks: int, directory: Path, timeout_seconds: float = 600.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end. Its black boxes are below `directory`, in run `job`."""
    env = {
        **os.environ,
        "RANKWATCH_DIR": str(directory),
        "RANKWATCH_RUN": "job",
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **variables,
    }
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        *arguments,
    ]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
