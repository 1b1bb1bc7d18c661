"""The job that the flags of `rankwatch simulate` describe. Needs NumPy."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.fault import Fault
from rankwatch_diagnosis.simulation.job import Job
from rankwatch_diagnosis.simulation.levels import Level, at_level
from rankwatch_diagnosis.simulation.megatron import Barrier, Megatron
from rankwatch_diagnosis.simulation.shape import JobShape
from rankwatch_diagnosis.simulation.workload import Noise


def job_of(given: Namespace, shape: JobShape, ranks: tuple[int, ...]) -> Job:
    """The job with its faults, of which the first strikes `ranks`. Raises UserError."""
    job = Job(
        shape=shape,
        noise=Noise(sigma=given.sigma),
        fault=_fault(given, ranks),
        more_faults=tuple(map(_also, given.also)),
        steps=given.steps,
        seed=given.seed,
        with_work=given.work,
    )
    job = at_level(job, Level(given.level))
    if given.barriers is not None:
        if job.megatron is None:
            raise UserError("--barriers needs --as real")
        job = replace(job, megatron=Megatron(barriers=tuple(map(Barrier, given.barriers))))
    spread = {
        "rank_sigma": given.chip_spread,
        "drift_sigma": given.drift,
        "outlier_probability": given.delayed,
    }
    known = {name: value for name, value in spread.items() if value is not None}
    recorder = replace(job.recorder, **dict.fromkeys(given.without, False))
    return replace(job, noise=replace(job.noise, **known), recorder=recorder)


def _fault(given: Namespace, ranks: tuple[int, ...]) -> Fault:
    return Fault(
        cause=Cause(given.fault),
        ranks=ranks,
        phase=SlowPhase(given.phase),
        stage=given.stage,
        factor=given.factor,
        probability=given.probability,
        first_step=given.first_step or 0,
        duration=given.duration,
        period=given.period,
        share_of_steps=given.share_of_steps,
        unrecorded=given.unrecorded,
    )


_ALSO: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "ranks": lambda text: tuple(map(int, text.split("+"))),
        "phase": SlowPhase,
        "stage": int,
        "factor": float,
        "probability": float,
        "first_step": int,
        "duration": int,
        "period": int,
        "share_of_steps": float,
    }
)
"""Fields of another fault in the same job, and how they are read."""


def _also(text: str) -> Fault:
    """The fault of `slow_rank,ranks=3+5,factor=1.2`; raises UserError."""
    cause, *pairs = text.split(",")
    try:
        given = dict(pair.split("=") for pair in pairs)
        return Fault(cause=Cause(cause), **{name: _ALSO[name](value) for name, value in given.items()})
    except (KeyError, ValueError) as error:
        raise UserError(
            f"--also is {text!r}, expected a fault such as slow_rank,ranks=3+5,factor=1.2;"
            f" fields are {', '.join(_ALSO)}"
        ) from error
