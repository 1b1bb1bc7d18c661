"""Whole jobs on simulated devices: what is slow in them, what that truly costs, and what we say about it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from statistics import median

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch.identity import Identity
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.steps.assembly import StepAssembler
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.pace import judge_straggler
from rankwatch_diagnosis.run.step_rows import numbers_repeat, rows_by_rank
from rankwatch_diagnosis.straggler.verdict import Verdict
from support.device.machine import Operation
from support.device.model import Step
from support.device.programs import PROGRAMS, Program
from support.device.rank import Network, Rank, run_together

LOADER_SECONDS = 0.5e-3
STEP_SECONDS = 0.028
"""About the own time of a step of most programs: what the size of a fault of the host refers to."""
NOISE = 0.01
WARM_STEPS = 6
"""Steps that find the device, capture graphs and fill queues."""
_FUTURE_SECONDS = 1e4


class Slow(StrEnum):
    """What one rank is slow in."""

    COMPUTE = "compute"
    """Its device."""
    HOST = "host"
    """Its host enqueues so slowly that the device is idle."""
    LOADER = "loader"
    BETWEEN = "between"
    """Its host works between phases."""
    LINK = "link"
    """All transfers that it takes part in."""
    BATCHES = "batches"
    """All ranks have batches of unequal size."""


PHASES = {
    Slow.COMPUTE: SlowPhase.COMPUTE,
    Slow.HOST: SlowPhase.COMPUTE,
    Slow.LOADER: SlowPhase.DATA_LOADING,
    Slow.BETWEEN: SlowPhase.OTHER,
}
"""The phase of a slow rank that grows."""
HEALTHY = (Cause.NONE, Cause.NETWORK)
"""What may be said of a healthy job: transfers of some programs are a large part of their steps."""
CAUSES = {Slow.LINK: (Cause.NETWORK,), Slow.BATCHES: (Cause.UNEQUAL_BATCHES,)}
"""Causes that name no rank."""
EXACT = (Slow.COMPUTE, Slow.LOADER, Slow.BETWEEN)
"""Faults whose share of the local time is known beforehand."""
UNEVEN = frozenset(("expert_parallel", "graph_of_compute"))
"""Programs whose ranks have unequal work by chance; a graph repeats the noise that it was captured with."""


@dataclass(frozen=True)
class Fault:
    """What is slow, on which rank, and by which part of the step."""

    what: Slow
    rank: int
    size: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program, its fault, and how its hosts run."""

    program: str
    fault: Fault | None = None
    steps: int = 24
    seed: int = 0
    pause: tuple[int, int, float] | None = None
    """Rank, step and seconds of a pause in one step of one rank."""
    steps_of_epoch: int = 0
    """After so many steps their numbers begin again; 0 for never."""
    reads_loss: bool = True
    """Whether the host reads the loss in each step, so that it never runs ahead by more than a step."""

    @property
    def of(self) -> Program:
        """What the ranks run."""
        return PROGRAMS[self.program]

    @property
    def blamed(self) -> int | None:
        """The slow rank, if its fault is one that names a rank."""
        return None if self.fault is None or self.fault.what not in PHASES else self.fault.rank


class Result:
    """A job that has run, with its boxes in a directory."""

    steps_on_host = 1
    """Of those that the figures hold: the first step is not on the device."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.job, self.directory = job, directory
        self.ranks = _ranks(job, directory)
        self._warm: list[float] = []
        self._run()
        self.step_seconds = (self._end() - max(self._warm)) / (job.steps - WARM_STEPS)
        """Truth: the time that a step took, without the first ones."""

    def _run(self) -> None:
        make, grid = self.job.of.step, self.job.of.grid
        run_together([(each, _train(each, make(each, grid), self.job, self._warmed)) for each in self.ranks])

    def _warmed(self, now: float) -> None:
        """A rank has done its first steps."""
        self._warm.append(now)

    def _end(self) -> float:
        return max(each.host.now for each in self.ranks)

    @cached_property
    def verdict(self) -> Verdict:
        """What `diagnose run` says about the boxes."""
        boxes = read_boxes(find_run(self.directory).boxes, copied=None)
        found = judge_straggler(boxes, rows_by_rank(boxes, by_place=numbers_repeat(boxes)))
        assert found is not None
        return found

    @cached_property
    def agent(self) -> Mapping[int, StepAssembler]:
        """What the agent has added up, by rank."""
        return {each.number: totals(each) for each in self.ranks}

    def residuals(self) -> Mapping[int, float]:
        """Local time of each rank over the median of its stage, less 1, as the rules compute it."""
        local = {rank: each.local_seconds / each.steps for rank, each in self.agent.items()}
        stages: dict[int, list[float]] = {}
        for rank, seconds in local.items():
            stages.setdefault(self._stage(rank), []).append(seconds)
        return {rank: seconds / median(stages[self._stage(rank)]) - 1.0 for rank, seconds in local.items()}

    def phase_shares(self, rank: int) -> Mapping[str, float]:
        """Parts of a rank's steps by phase, as the agent knows them."""
        found = self.agent[rank]
        return {name: seconds / found.seconds for name, seconds in found.phase_seconds.items()}

    def known(self) -> bool:
        """Whether the agent has the local time of all ranks."""
        return all(each.local_known for each in self.agent.values())

    def expected_share(self, fault: Fault) -> float:
        """What a fault of size 1 adds to the residual of its rank."""
        peers = [each for rank, each in self.agent.items() if self._stage(rank) == self._stage(fault.rank)]
        local = median(each.local_seconds / each.steps for each in peers)
        extra = STEP_SECONDS
        if fault.what is Slow.COMPUTE:
            extra = local - median(each.phase_seconds["data_wait"] / each.steps for each in peers)
        return extra / local * (1.0 - self.steps_on_host / self.job.steps)

    def _stage(self, rank: int) -> int:
        return self.job.of.grid.place(rank)[0]


def totals(rank: Rank) -> StepAssembler:
    """The steps of a rank as the agent adds them up from its box."""
    found = RankTotals(lambda _: None, max_names=64)
    with closing(Reader(rank.writer.path)) as reader:
        found.add(reader.poll(), reader.name)
    end = time.monotonic() + _FUTURE_SECONDS
    found.steps.settle(end, end)
    return found.steps


def _ranks(job: Job, directory: Path) -> list[Rank]:
    grid, network = job.of.grid, Network()
    began = time.monotonic()
    found = []
    for number in range(grid.size):
        coordinates = grid.coordinates(number)
        identity = Identity(run="job", rank=number, world_size=grid.size, coordinates=coordinates)
        rank = Rank(number, network, directory, identity, began=began, seed=job.seed)
        rank.noise = NOISE
        found.append(rank)
    return found


def _train(rank: Rank, step: Step, job: Job, warmed: Callable[[float], None]) -> Iterator[Operation]:
    """The loop of one rank, with the fault; calls `warmed` when its first steps are over."""
    pace = _Pace(rank, job)
    run, ended = rank.run, deque[Operation]()
    for number in range(job.steps):
        if number == WARM_STEPS:
            yield from rank.wait_for_device()
            warmed(rank.host.now)
        with run.phase("data_wait"):
            rank.host.spend(pace.loader_seconds)
        with run.step(number % job.steps_of_epoch if job.steps_of_epoch else None):
            pace.batch()
            yield from step()
            if job.reads_loss:
                yield from rank.wait_for_device()
            rank.host.spend(pace.between_seconds)
            if job.pause is not None and job.pause[:2] == (rank.number, number):
                rank.host.spend(job.pause[2])
        ended.append(rank.machine.current().last)
        if len(ended) > 2:
            yield ended.popleft()
    yield from rank.wait_for_device()
    run.finish()


class _Pace:
    """How fast a rank works."""

    def __init__(self, rank: Rank, job: Job) -> None:
        self._rank = rank
        self._fault = fault = job.fault
        self.loader_seconds, self.between_seconds = LOADER_SECONDS, 0.0
        if fault is None:
            return
        if fault.what is Slow.LINK:
            rank.link_factors = {fault.rank: 1.0 + fault.size}
        if rank.number != fault.rank:
            return
        if fault.what is Slow.COMPUTE:
            rank.compute_factor += fault.size
        elif fault.what is Slow.HOST:
            rank.host_per_compute = 1.0 + fault.size
        elif fault.what is Slow.LOADER:
            self.loader_seconds += fault.size * STEP_SECONDS
        elif fault.what is Slow.BETWEEN:
            self.between_seconds = fault.size * STEP_SECONDS

    def batch(self) -> None:
        """A batch begins."""
        fault, rank = self._fault, self._rank
        if fault is not None and fault.what is Slow.BATCHES:
            rank.compute_factor = rank.random.uniform(1.0 - fault.size, 1.0 + fault.size)
            rank.run.work(tokens=round(1e4 * rank.compute_factor))


# -- judging --------------------------------------------------------------------------------------

LEAST_RESIDUAL = 0.08
"""Of a rank that must be named: what slows it by 10 % adds a little less to its local time."""
LEAST_SLOWDOWN = 1.01
"""Below, nobody would look after what a fault costs."""
_INNOCENT = 0.03
"""Residual of a healthy rank."""
_TRUTH_SHARE = 0.05
"""Of what a rank truly took more, by which its residual may differ from it."""
_CHANCE = 0.005
"""Part of the local time by which the noise of single operations may make ranks differ."""


def complaints(result: Result, healthy: Result) -> Iterator[str]:
    """What is wrong with what the agent and the diagnosis say about a job, in words."""
    fault, verdict = result.job.fault, result.verdict
    blamed = result.job.blamed
    named = {rank for each in verdict.causes if each.certain for rank in each.ranks} | set(verdict.ranks)
    yield from (f"rank {rank} is named" for rank in named - {blamed})
    if any(rank.writer.integers[Now.ERRORS] for rank in result.ranks):
        yield "the hooks had errors"
    if not result.job.of.sees_waits:
        if result.known():
            yield "the agent claims to know local times"
        return
    yield from residual_complaints(result, blamed, result.residuals())
    truth = result.step_seconds / healthy.step_seconds
    if blamed is None:
        allowed = CAUSES.get(fault.what, ()) if fault is not None else ()
        if verdict.cause not in (*HEALTHY, *allowed):
            yield f"the cause is {verdict.cause}"
        return
    if truth < LEAST_SLOWDOWN or result.residuals()[blamed] < LEAST_RESIDUAL:
        return
    assert fault is not None
    if (verdict.cause, verdict.ranks) != (Cause.SLOW_RANK, (blamed,)):
        yield f"{verdict.cause} of ranks {verdict.ranks} instead of slow rank {blamed}"
    elif verdict.phase != PHASES[fault.what]:
        yield f"the phase is {verdict.phase}"
    if abs(verdict.slowdown / truth - 1.0) > result.job.of.cost_share:
        yield f"the price is {verdict.slowdown:.3f}, truly {truth:.3f}"


def residual_complaints(result: Result, blamed: int | None, residuals: Mapping[int, float]) -> Iterator[str]:
    """What is wrong with the figures of the agent, or with what the rules make of them."""
    fault = result.job.fault
    if not result.known():
        yield "the agent does not know local times"
    if fault is not None and fault.what is Slow.BATCHES:
        return  # ranks with long batches take longer
    limit, chance = (2 * _INNOCENT, _INNOCENT) if result.job.program in UNEVEN else (_INNOCENT, _CHANCE)
    for rank, residual in residuals.items():
        if rank != blamed and abs(residual) > limit:
            yield f"rank {rank} has a residual of {residual:+.1%}"
    if fault is not None and blamed is not None and result.job.reads_loss and fault.what in EXACT:
        expected = fault.size * result.expected_share(fault)
        if abs(residuals[blamed] - expected) > _TRUTH_SHARE * expected + chance:
            yield f"its residual is {residuals[blamed]:+.1%} instead of {expected:+.1%}"
