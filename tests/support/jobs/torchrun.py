"""Running a distributed job in tests, and what the installed release of PyTorch lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CRASH_OF_GLOO = "terminate called without an active exception"
"""What a thread of gloo prints that now and then crashes a process at its exit, without rankwatch, too."""


def torchrun(
    *arguments: str, ranks: int, directory: Path, timeout_seconds: float = 600.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end. Its black boxes are below `directory`, in run `job`."""
    ours = {"RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "job"}
    env = {**os.environ, **ours, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **variables}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", *arguments]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )


NO_GLOO_RECORDER = "torch before 2.10 serves no flight recorder of gloo"
"""Reason for skipping a test if `serves_gloo_recorder` is false."""


def serves_gloo_recorder() -> bool:
    """True if the worker server has the handler `fr_trace_json`, according to the version of torch.

    The server itself is not queried, because a release that lost the handler must fail the tests, not skip
    them.
    """
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 10)
