"""Collector `slurm`: which SLURM job uses which GPU, by a job map and by the environment of processes.

A job map is a directory that prolog and epilog scripts of SLURM write, in the form of dcgm-exporter's
--hpc-job-mapping-dir: one file per GPU named by its number (`2`), or by GPU and GPU instance (`2.1`) for a
MIG instance. Each line of a file is the id of a job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.gpu.inventory import GpuFinder, GpuInventory
from rankwatch_agent.sources.kernel_files import parse_kernel_file
from rankwatch_agent.sources.shared import NodeShared

logger = logging.getLogger(__name__)


SOURCE = "slurm"
MAX_FILES = 1024
"""Files of one job map. Sixteen GPUs cut into seven instances have 128."""
MAX_JOBS = 256
"""Jobs of one file."""

_FILE_NAME = re.compile(r"(\d{1,4})(?:\.(\d{1,3}))?", re.ASCII)
_JOB_ID = re.compile(r"[\w.+:@\[\]-]{1,64}", re.ASCII)
"""Id of a job, of an array task (8_3), or of a component of a heterogeneous job (8+1)."""
_VARIABLE = "SLURM_JOB_ID="


class _Allocation(NamedTuple):
    gpu: str
    mig: str
    job: str


# The allocation of GPUs changes with a job, not every second.
@source(interval_seconds=30.0, deadline_seconds=10.0)
def slurm(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield SlurmCollector(
        job_map=config.slurm_job_map, procfs=config.procfs, inventory=shared.inventory, schedule=schedule
    )


class SlurmCollector:
    """Uses both sources at once: a job map knows MIG instances, the environment needs no SLURM scripts."""

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
        self._seen_job = False

    def collect(self) -> Collection:
        """Return the jobs of all GPUs.

        Raises CollectError where a job map cannot be listed, NotApplicable without a job map as long as no
        process on a GPU has belonged to a SLURM job.
        """
        self._unmatched = 0
        mapped = list(self._from_job_map())
        # A process does not know its MIG instance. Where the map has the job, the process adds nothing.
        known = {(each.gpu, each.job) for each in mapped}
        running = [each for each in self._from_processes() if (each.gpu, each.job) not in known]
        self._seen_job = self._seen_job or bool(running)
        if self._job_map is None and not self._seen_job:
            hidden = f"; the agent may not read {self._unmatched} of their environments"
            message = "no job map is set, and no process on a GPU belongs to a SLURM job"
            raise NotApplicable(message + (hidden if self._unmatched else ""))
        return Collection(tuple(self._series(dict.fromkeys([*mapped, *running]))))

    def _from_job_map(self) -> Iterator[_Allocation]:
        if self._job_map is None:
            return
        try:
            files = gpu_files(self._job_map)
        except NotApplicable:  # the prolog of the first job creates it
            return
        except CollectError:
            self._failures += 1
            raise
        finder = GpuFinder(self._inventory.gpus(), self._inventory.exported())
        for path, number, instance in files:
            try:
                jobs = read_jobs(path)
            except CollectError as error:
                self._count_failure(error)
                continue
            gpu = finder.by_index(number, instance)
            if gpu is None:
                self._unmatched += bool(jobs)
            else:
                yield from (_Allocation(*gpu, job) for job in jobs)

    def _from_processes(self) -> Iterator[_Allocation]:
        for gpu in self._inventory.gpus():
            for pid in gpu.pids:
                try:
                    job = job_of_process(self._procfs, pid)
                except CollectError:  # a missing permission, not a failure
                    self._unmatched += 1
                    continue
                if job is not None:
                    yield _Allocation(gpu.uuid, "", job)

    def _count_failure(self, error: CollectError) -> None:
        self._failures += 1
        if self._log_limit.allows(str(error)):
            logger.warning("collector %s skips a broken part: %s", self.name, error)

    def _series(self, allocations: dict[_Allocation, None]) -> Iterator[Series]:
        for allocation in allocations:
            yield sample("rankwatch_gpu_slurm_info", tuple(allocation), 1)
        yield sample("rankwatch_gpu_allocations_unmatched", (SOURCE,), self._unmatched)
        yield sample("rankwatch_attribution_failures_total", (SOURCE,), self._failures)


class GpuFile(NamedTuple):
    """The file of one GPU in a job map."""

    path: Path
    gpu: int
    """NVML's number of the GPU."""
    instance: int | None
    """GPU instance; None for the whole GPU."""


def gpu_files(directory: Path) -> list[GpuFile]:
    """Return the files named like a GPU. Other files are ignored.

    Raises NotApplicable where there is no such directory, CollectError where it cannot be listed.
    """
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        raise NotApplicable(f"there is no job map ({directory})") from None
    except OSError as error:
        raise CollectError(f"could not list the job map {directory}: {error.strerror or error}") from None
    found = []
    for match in filter(None, map(_FILE_NAME.fullmatch, names)):
        instance = None if match[2] is None else int(match[2])
        found.append(GpuFile(directory / match[0], int(match[1]), instance))
    if len(found) > MAX_FILES:
        raise CollectError(f"could not use the job map {directory}: more than {MAX_FILES} files")
    return found


def read_jobs(path: Path) -> list[str]:
    """Return the jobs of one file, none where the GPU is idle. Raises CollectError."""
    try:
        return parse_kernel_file(path, parse_jobs)
    except NotApplicable:  # an epilog has just removed it
        return []


def parse_jobs(text: str) -> list[str]:
    """Return the job ids, each once. Raises ValueError for a line that is not a job id."""
    jobs = dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    for job in jobs:
        if not _JOB_ID.fullmatch(job):
            raise ValueError(f"{job[:40]!r} is not the id of a job")
    if len(jobs) > MAX_JOBS:
        raise ValueError(f"more than {MAX_JOBS} jobs")
    return list(jobs)


def job_of_process(procfs: Path, pid: int) -> str | None:
    """Return the job of a process; None where it has ended or belongs to no job.

    Raises CollectError where its environment cannot be read: it belongs to another user, and the agent is not
    root.
    """
    try:
        return parse_kernel_file(procfs / str(pid) / "environ", parse_environment)
    except NotApplicable:
        return None


def parse_environment(environment: str) -> str | None:
    """Return the value of SLURM_JOB_ID; None where it is missing or not a job id: users can set it."""
    for variable in environment.split("\0"):
        if variable.startswith(_VARIABLE):
            job = variable.removeprefix(_VARIABLE)
            return job if _JOB_ID.fullmatch(job) else None
    return None
