"""Jobs of four to sixteen ranks on simulated GPUs, from the hooks to the agent's figures and the verdict."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from rankwatch.conventions.states import Cause
from rankwatch.device import parts
from support.device.jobs import Fault, Job, Result, Slow, complaints
from support.device.programs import PROGRAMS

Healthy = Callable[..., Result]
_SIZES = {Slow.LINK: (1.0, 20.0)}
"""Smallest and largest; else a tenth and half of the step."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """Returns the healthy job of a program, which it runs once."""

    @cache
    def run(program: str, seed: int = 0, *, reads_loss: bool = True) -> Result:
        job = Job(program=program, seed=seed, reads_loss=reads_loss)
        return Result(job, tmp_path_factory.mktemp("healthy"))

    return run


PIPELINES = ("one_f_one_b", "interleaved")
FAULTY = {
    "slow rank": [
        Job(program=each, fault=Fault(Slow.COMPUTE, 2, size)) for each in PROGRAMS for size in (0.1, 0.4)
    ],
    "other causes": [
        Job(program=each, fault=Fault(what, 1, 20.0 if what is Slow.LINK else 0.2))
        for each in ("ddp", "fsdp2", "tensor_parallel", *PIPELINES)
        for what in Slow
        if what is not Slow.COMPUTE
    ],
    # A loop that counts the steps of each epoch from 0 is judged as any other.
    "epochs": [
        Job(program=each, fault=Fault(Slow.COMPUTE, 2, 0.3), steps_of_epoch=steps)
        for each in ("ddp", "one_f_one_b")
        for steps in (12, 3)
    ],
    # Each rank of the pipeline is in another step.
    "hosts ahead": [
        Job(program=each, fault=Fault(what, 1, 0.45), reads_loss=False)
        for each in PIPELINES
        for what in (Slow.COMPUTE, Slow.HOST, Slow.LOADER)
    ],
    # It has the time until the first microbatch comes, and the rank has ended its step before the others.
    "loader of a later stage": [Job(program="one_f_one_b", fault=Fault(Slow.LOADER, 5, 0.48))],
}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, id=f"{case}, {job.program}, {job.fault and job.fault.what}")
        for case, jobs in FAULTY.items()
        for job in jobs
    ],
)
def test_faulty_job(healthy: Healthy, tmp_path: Path, job: Job) -> None:
    """The rank with the fault is named, with what is slow and what it costs, and no other."""
    usual = healthy(job.program, reads_loss=job.reads_loss)
    assert list(complaints(Result(job, tmp_path), usual)) == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_healthy_job(healthy: Healthy, program: str) -> None:
    """Nobody is named where nobody is slow, and no rank has a local time of its own."""
    result = healthy(program)
    assert list(complaints(result, result)) == []


def time_each_eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where steps are much shorter."""
    monkeypatch.setattr(parts, "MOST_OF_STEP", 1e-9)
    monkeypatch.setattr(parts, "MOST_EVERY", 8)


@pytest.mark.parametrize("program", ["ddp", "fsdp2", "one_f_one_b"])
def test_untimed_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Where only each eighth step has its phases timed, everything is found that is found otherwise, and the
    phases have the same shares."""
    fault = Fault(Slow.COMPUTE, 2, 0.2)
    timed = Result(Job(program=program, steps=160, fault=fault), tmp_path / "timed")
    time_each_eighth(monkeypatch)
    usual = Result(Job(program=program, steps=160), tmp_path / "healthy")
    result = Result(Job(program=program, steps=160, fault=fault), tmp_path / "faulty")
    assert list(complaints(usual, usual)) + list(complaints(result, usual)) == []
    shares, expected = (each.phase_shares(2) for each in (result, timed))
    assert shares == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("step", [96, 99])
def test_event_in_short_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A single long step is told with its rank, whether its phases were timed or not."""
    time_each_eighth(monkeypatch)
    verdict = Result(Job(program="ddp", steps=160, pause=(2, step, 1.0)), tmp_path).verdict
    assert verdict.ranks == ()
    assert [(each["step"], each["ranks"]) for each in verdict.events] == [(step, [2])]
    assert verdict.event_seconds == pytest.approx(1.0, rel=0.05)


def test_link_of_a_pipeline(healthy: Healthy, tmp_path: Path) -> None:
    """All messages of a rank are slow, and its all-reduces: that costs what it truly costs."""
    for program in ("one_f_one_b", "interleaved"):
        job = Job(program=program, fault=Fault(Slow.LINK, 5, 20.0))
        result = Result(job, tmp_path / program)
        assert result.verdict.cause is Cause.NETWORK
        truth = result.step_seconds / healthy(program).step_seconds
        assert result.verdict.slowdown == pytest.approx(truth, rel=job.of.cost_share)


def test_all_ranks_are_there(healthy: Healthy) -> None:
    """Waits of layers that add up get shorter the later the last rank comes, as a wait for a rank that is
    missing does. But no rank is missing."""
    assert healthy("zero3", 687014791).verdict.cause is Cause.NONE


def test_hidden_loader(healthy: Healthy, tmp_path: Path) -> None:
    """A loader is not slow whose work the device hides, because the host runs ahead."""
    job = Job(program="ddp", fault=Fault(Slow.LOADER, 2, 0.3), reads_loss=False)
    result = Result(job, tmp_path)
    truth = result.step_seconds / healthy("ddp", reads_loss=False).step_seconds
    assert truth < 1.02, "all but the first, after a pause, is hidden"
    assert result.verdict.ranks == ()
    assert max(map(abs, result.residuals().values())) < 0.03


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_many_jobs(tmp_path: Path, part: int) -> None:
    """Of 50 healthy and 50 faulty jobs in each part no innocent rank is named, and no slow one is missed."""
    rng = random.Random(part)
    found = []
    for number in range(50):
        program = rng.choice(list(PROGRAMS))
        seed, reads_loss = rng.randrange(1 << 30), rng.random() < 0.7
        what = rng.choice(list(Slow))
        rank, size = rng.randrange(PROGRAMS[program].grid.size), rng.uniform(*_SIZES.get(what, (0.1, 0.5)))
        directory = tmp_path / str(number)
        usual = Result(Job(program=program, seed=seed, reads_loss=reads_loss), directory / "healthy")
        job = Job(program=program, seed=seed, reads_loss=reads_loss, fault=Fault(what, rank, size))
        found += [f"{usual.job}: {each}" for each in complaints(usual, usual)]
        found += [f"{job}: {each}" for each in complaints(Result(job, directory / "faulty"), usual)]
        shutil.rmtree(directory)
    assert not found, "\n".join(found)
