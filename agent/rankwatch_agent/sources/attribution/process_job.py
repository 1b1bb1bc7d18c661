"""The SLURM job of a process, from its environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rankwatch_agent.runtime.collector import CollectError
from rankwatch_agent.sources.attribution.job_map import is_job

MAX_ENVIRONMENT_BYTES = 1 << 20
"""Read at most; the kernel allows more, which no launcher uses."""
_VARIABLE = b"SLURM_JOB_ID="


def job_of_process(procfs: Path, pid: int) -> str | None:
    """The job's id; None where the process has ended or belongs to no job.

    Raises CollectError where its environment may not be read: it belongs to another user, and the agent
    is not root.
    """
    try:
        environment = _read(procfs / str(pid) / "environ")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise CollectError(f"could not read the environment of process {pid}: {error.strerror}") from None
    return parse_environment(environment)


def parse_environment(environment: bytes) -> str | None:
    """The value of SLURM_JOB_ID; None where it is missing or no id of a job."""
    for variable in environment.split(b"\0"):
        if variable.startswith(_VARIABLE):
            with contextlib.suppress(UnicodeDecodeError):
                job = variable.removeprefix(_VARIABLE).decode("ascii")
                return job if is_job(job) else None
    return None


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = bytearray()
        # The kernel hands out a page at a time.
        while len(found) < MAX_ENVIRONMENT_BYTES:
            read = os.read(file, MAX_ENVIRONMENT_BYTES - len(found))
            if not read:
                break
            found += read
        return bytes(found)
    finally:
        os.close(file)
