"""Which SLURM job was given which GPU: by a job map, and by the environment of the processes on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import CollectError, Collection, NotApplicable, Series
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.attribution.gpu_finder import GpuFinder
from rankwatch_agent.sources.attribution.job_map import gpu_files, read_jobs
from rankwatch_agent.sources.attribution.process_job import job_of_process
from rankwatch_agent.sources.gpu.inventory import GpuInventory

logger = logging.getLogger(__name__)

_JOB = metric("rankwatch_gpu_slurm_info")
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
            yield Series(_JOB, tuple(allocation), 1)
        yield Series(_UNMATCHED, (SOURCE,), self._unmatched)
        yield Series(_FAILURES, (SOURCE,), self._failures)
