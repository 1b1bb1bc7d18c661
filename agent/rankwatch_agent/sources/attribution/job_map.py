"""SLURM jobs by GPU from a directory of files, which prolog and epilog scripts of SLURM write.

The form is that of dcgm-exporter's --hpc-job-mapping-dir: a file for each GPU is called by its number
(`2`), for a MIG instance by GPU and GPU instance (`2.1`); each line holds the id of a job.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.collector import CollectError, NotApplicable

MAX_FILES = 1024
"""Files of one directory; sixteen GPUs cut into seven have 128."""
MAX_FILE_BYTES = 65536
MAX_JOBS = 256
"""Jobs of one file."""

_NAME = re.compile(r"(\d{1,4})(?:\.(\d{1,3}))?", re.ASCII)
_JOB = re.compile(r"[\w.+:@\[\]-]{1,64}", re.ASCII)
"""The id of a job, of a task of an array (8_3), or of a part of a heterogeneous job (8+1)."""


class GpuFile(NamedTuple):
    """The file of one GPU."""

    path: Path
    gpu: int
    """NVML's number of it."""
    instance: int | None
    """GPU instance; None for the whole GPU."""


def gpu_files(directory: Path) -> list[GpuFile]:
    """The files that are called like a GPU; others may lie beside them.

    Raises NotApplicable where there is no such directory, CollectError where it cannot be listed.
    """
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        raise NotApplicable(f"there is no job map ({directory})") from None
    except OSError as error:
        raise CollectError(f"could not list the job map {directory}: {error.strerror or error}") from None
    found = [GpuFile(directory / match[0], int(match[1]), _number(match[2])) for match in _matches(names)]
    if len(found) > MAX_FILES:
        raise CollectError(f"could not use the job map {directory}: more than {MAX_FILES} files")
    return found


def read_jobs(path: Path) -> list[str]:
    """The jobs of one file, none where the GPU is idle; raises CollectError."""
    try:
        # Without waiting: a FIFO would keep the agent for ever.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []  # an epilog has just removed it
    except OSError as error:
        raise CollectError(f"could not read {path}: {error.strerror or error}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise CollectError(f"could not read {path}: it is no regular file")
        raw = os.read(file, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CollectError(f"could not read {path}: {error.strerror or error}") from None
    finally:
        os.close(file)
    return _parsed(path, raw)


def parse_jobs(text: str) -> list[str]:
    """The ids, each once; raises ValueError for a line that is none."""
    jobs = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    for job in jobs:
        if not is_job(job):
            raise ValueError(f"{job[:40]!r} is no id of a job")
    if len(jobs) > MAX_JOBS:
        raise ValueError(f"more than {MAX_JOBS} jobs")
    return list(jobs)


def is_job(text: str) -> bool:
    """Whether this can be the id of a SLURM job."""
    return _JOB.fullmatch(text) is not None


def _parsed(path: Path, raw: bytes) -> list[str]:
    if len(raw) > MAX_FILE_BYTES:
        raise CollectError(f"could not use {path}: it has more than {MAX_FILE_BYTES} bytes")
    try:
        return parse_jobs(raw.decode("utf-8", "replace"))
    except ValueError as error:
        raise CollectError(f"could not use {path}: {error}") from None


def _matches(names: list[str]) -> Iterator[re.Match[str]]:
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            yield match


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
