"""Which SLURM job was given which GPU: by a job map, and by the environment of the processes on it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.sources.attribution.gpu_finder import GpuFinder
from rankwatch_agent.sources.gpu.inventory import GpuInventory

logger = logging.getLogger(__name__)

MAX_FILES = 1024
"""Files of one directory; sixteen GPUs cut into seven have 128."""
MAX_FILE_BYTES = 65536
MAX_JOBS = 256
"""Jobs of one file."""

_NAME = re.compile(r"(\d{1,4})(?:\.(\d{1,3}))?", re.ASCII)
_JOB_ID = re.compile(r"[\w.+:@\[\]-]{1,64}", re.ASCII)
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
    return _JOB_ID.fullmatch(text) is not None


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


MAX_ENVIRONMENT_BYTES = 1 << 20
"""Read at most; the kernel allows more, which no launcher uses."""
_VARIABLE = b"SLURM_JOB_ID="


def job_of_process(procfs: Path, pid: int) -> str | None:
    """The job's id; None where the process has ended or belongs to no job.

    Raises CollectError where its environment may not be read: it belongs to another user, and the agent
    is not root.
    """
    try:
        environment = _read_environment(procfs / str(pid) / "environ")
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


def _read_environment(path: Path) -> bytes:
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


_JOB_INFO = metric("rankwatch_gpu_slurm_info")
_UNMATCHED = metric("rankwatch_gpu_allocations_unmatched")
_FAILURES = metric("rankwatch_attribution_failures_total")

SOURCE = "slurm"


class _Allocation(NamedTuple):
    gpu: str
    mig: str
    job: str


class SlurmCollector:
    """Both ways at once: a job map knows MIG instances, an environment needs no scripts of SLURM."""

    name = "slurm"

    def __init__(
        self, *, job_map: Path | None, procfs: Path, inventory: GpuInventory, schedule: Schedule
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._job_map = job_map
        self._procfs = procfs
        self._inventory = inventory
        self._log_limit = LogLimit()
        self._failures = 0
        self._unmatched = 0
        self._seen = False

    def collect(self) -> Collection:
        """Jobs of all GPUs.

        Raises CollectError where a job map cannot be listed, NotApplicable where there is none and no
        process on a GPU belonged to a SLURM job so far.
        """
        self._unmatched = 0
        mapped = list(self._mapped())
        # A process does not tell its MIG instance: where the map knows the job's, that is enough.
        known = {(each.gpu, each.job) for each in mapped}
        running = [each for each in self._running() if (each.gpu, each.job) not in known]
        self._seen = self._seen or bool(running)
        if self._job_map is None and not self._seen:
            raise NotApplicable(
                "no job map is set, and no process on a GPU is known to belong to a SLURM job"
            )
        return Collection(tuple(self._series(dict.fromkeys([*mapped, *running]))))

    def _mapped(self) -> Iterator[_Allocation]:
        if self._job_map is None:
            return
        try:
            files = gpu_files(self._job_map)
        except NotApplicable:  # prolog scripts make it with the first job
            return
        except CollectError:
            self._failures += 1
            raise
        finder = GpuFinder(self._inventory.gpus(), self._inventory.exported())
        for path, number, instance in files:
            try:
                jobs = read_jobs(path)
            except CollectError as error:
                self._failed(error)
                continue
            gpu = finder.by_index(number, instance)
            if gpu is None:
                self._unmatched += bool(jobs)
            else:
                yield from (_Allocation(*gpu, job) for job in jobs)

    def _running(self) -> Iterator[_Allocation]:
        for gpu in self._inventory.gpus():
            for pid in gpu.pids:
                try:
                    job = job_of_process(self._procfs, pid)
                except CollectError:  # a matter of rights, not a fault
                    self._unmatched += 1
                    continue
                if job is not None:
                    yield _Allocation(gpu.uuid, "", job)

    def _failed(self, error: CollectError) -> None:
        self._failures += 1
        if self._log_limit.allows(str(error)):
            logger.warning("collector %s goes on without a part: %s", self.name, error)

    def _series(self, allocations: dict[_Allocation, None]) -> Iterator[Series]:
        for allocation in allocations:
            yield Series(_JOB_INFO, tuple(allocation), 1)
        yield Series(_UNMATCHED, (SOURCE,), self._unmatched)
        yield Series(_FAILURES, (SOURCE,), self._failures)
