"""Jobs of other shapes than the recorded ones, for machines without these and against fitting to them.

The simulator writes a healthy table with what production tables have. All else is the re-timer's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import MappingProxyType

from bench.simulation.job import Job, Level, at_level, simulate
from bench.simulation.program import JobShape

from .job import Base, base_of

SHAPES = MappingProxyType(
    {
        "wide": JobShape(data_parallel=32, pipeline_parallel=2, microbatches=8),
        "flat": JobShape(data_parallel=16, microbatches=6),
    }
)
_STEPS = 24


@cache
def simulated(name: str) -> Base:
    """A healthy job: its stages are equal, its chips hardly differ, and no operation is delayed."""
    job = at_level(Job(shape=SHAPES[name], steps=_STEPS, seed=8), Level.REAL)
    quiet = replace(job.noise, sigma=0.01, rank_sigma=0.003, outlier_probability=0.0)
    equal = replace(job.workload, first_stage_extra=0.0, last_stage_extra=0.0)
    return base_of(simulate(replace(job, noise=quiet, workload=equal)).table)
