"""The rules on jobs of four to sixteen ranks on simulated GPUs, over what a real agent exports of them.

A job takes a second. For the rules it goes on for 45 minutes as it was. A rank whose compute is 10 % slower
is a little less than 10 % behind its peers. That is enough once the run has shown how little its ranks
differ, and not before.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import OF_RUNNING_RANKS
from rankwatch.conventions.states import Cause
from support.device.held import Exported, Judged, complaints_about_rules, judged
from support.device.jobs import PHASES, Fault, Job, Slow
from support.device.programs import PROGRAMS
from support.diagnosis.both_forms import Outcome

pytestmark = pytest.mark.process

_PROGRAMS = (
    "ddp",
    "lightning",
    "accumulation",
    "fsdp2",
    "hsdp",
    "zero3",
    "tensor_parallel",
    "expert_parallel",
    "one_f_one_b",
)
_UNSEEN = tuple(name for name, program in PROGRAMS.items() if not program.sees_waits)
"""Programs of which the agent does not know local times."""
_SIZES = (0.1, 0.3)
_FAULTS = tuple(each for each in Slow if each is not Slow.COMPUTE)
_SLOW = 2
"""The rank."""


def _compute(size: float) -> Fault:
    return Fault(Slow.COMPUTE, _SLOW, size)


def _other(what: Slow) -> Fault:
    return Fault(what, _SLOW, 20.0 if what is Slow.LINK else 0.2)


_JOBS = (
    *(Job(program=program) for program in (*_PROGRAMS, *_UNSEEN)),
    *(Job(program=program, fault=_compute(size)) for program in _PROGRAMS for size in _SIZES),
    *(Job(program=program, fault=_other(what)) for program in _PROGRAMS[::3] for what in _FAULTS),
    *(Job(program=program, fault=_compute(0.3)) for program in _UNSEEN),
)
"""All that this file asks of: promtool takes longer to start than to judge one more."""


@pytest.fixture(scope="module")
def of_rules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Job, Judged]:
    """What the rules say of each job."""
    directory = tmp_path_factory.mktemp("jobs")
    jobs = {str(number): Exported(job, directory / str(number)) for number, job in enumerate(_JOBS)}
    return {each.job.job: each for each in judged(jobs, directory).values()}


def _complaints(of_rules: Mapping[Job, Judged], job: Job) -> list[str]:
    return list(complaints_about_rules(of_rules[job], of_rules[Job(program=job.program)].job))


@pytest.mark.parametrize("program", _PROGRAMS)
def test_healthy_job(of_rules: Mapping[Job, Judged], program: str) -> None:
    """No alert fires where nothing is slow, and rules that see no ranks would prove nothing by silence."""
    job = Job(program=program)
    assert len(of_rules[job].by_rank("residuals")) == job.of.grid.size
    assert _complaints(of_rules, job) == []


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize("program", _PROGRAMS)
def test_slow_rank(of_rules: Mapping[Job, Judged], program: str, size: float) -> None:
    """A rank that computes more slowly is named alone, with its phase, its residual and its price."""
    job = Job(program=program, fault=_compute(size))
    assert of_rules[job].outcome.ranks == (_SLOW,)
    assert _complaints(of_rules, job) == []


@pytest.mark.parametrize("program", _PROGRAMS)
def test_young_run(of_rules: Mapping[Job, Judged], program: str) -> None:
    """In a young run, a rank must be 10 % behind its peers to be named."""
    named = [of_rules[Job(program=program, fault=_compute(size))].named("young") for size in _SIZES]
    assert named == [set(), {_SLOW}]


@pytest.mark.parametrize("what", _FAULTS)
@pytest.mark.parametrize("program", _PROGRAMS[::3])
def test_fault(of_rules: Mapping[Job, Judged], program: str, what: Slow) -> None:
    """Slow hosts, loaders and work between phases name the rank; slow links and uneven batches nobody."""
    job = Job(program=program, fault=_other(what))
    assert bool(of_rules[job].outcome.ranks) == (what in PHASES)
    assert _complaints(of_rules, job) == []


@pytest.mark.parametrize("program", _PROGRAMS[::3])
def test_uneven_batches(of_rules: Mapping[Job, Judged], program: str) -> None:
    """They are reported as such."""
    assert of_rules[Job(program=program, fault=_other(Slow.BATCHES))].outcome == Outcome(
        Cause.UNEQUAL_BATCHES
    )


@pytest.mark.parametrize("fault", [None, _compute(0.3)])
@pytest.mark.parametrize("program", _UNSEEN)
def test_unknown_local_time(of_rules: Mapping[Job, Judged], program: str, fault: Fault | None) -> None:
    """Where waits are not seen there is no local time, no zero in its place, and no straggler.

    Inside of a CUDA graph the rank says so, and RankwatchTelemetryAbsent has nothing to add. With two devices
    in one process only that alert does. How long steps take is known.
    """
    found = of_rules[Job(program=program, fault=fault)]
    names = {each.metric.name for each in found.job.series}
    assert not {each for each in names if "local" in each or "arrival" in each or "compute" in each}
    reporting, visible = (
        {each.labels[1:]: each.value for each in found.job.of_living if each.metric.name == name}
        for name in ("rankwatch_node_ranks_reporting", "rankwatch_run_capability_visible")
    )
    size, says = found.job.job.of.grid.size, program != "two_devices"
    expected = {(name,): size for name in OF_RUNNING_RANKS}
    expected["rankwatch_step_local_seconds_total",] = size * says
    assert {at: reporting[at] for at in expected} == expected
    assert visible == ({("waits", "cuda_graph"): 0} if says else {})
    assert found.outcome == Outcome(Cause.NONE)
    assert found.by_rank("residuals") == {}
    assert found.of_run("steps") == pytest.approx(found.job.step_seconds, rel=0.01)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_many_jobs(tmp_path: Path, part: int) -> None:
    """Of 50 healthy and 50 faulty jobs in each part no innocent rank is named, and no slow one is missed."""
    rng = random.Random(100 + part)
    jobs: dict[str, Exported] = {}
    for number in range(50):
        program = rng.choice(list(PROGRAMS))
        seed, reads_loss = rng.randrange(1 << 30), rng.random() < 0.7
        # A graph repeats the work of the batch that it was captured with, whatever the later ones hold.
        what = rng.choice([each for each in Slow if (program, each) != ("graph_of_compute", Slow.BATCHES)])
        size = rng.uniform(1.0, 20.0) if what is Slow.LINK else rng.uniform(0.1, 0.5)
        fault = Fault(what, rng.randrange(PROGRAMS[program].grid.size), size)
        for name, each in (("healthy", None), ("faulty", fault)):
            job = Job(program=program, seed=seed, reads_loss=reads_loss, fault=each)
            jobs[f"{number} {name}"] = Exported(job, tmp_path / f"{number}-{name}")
    found = []
    for name, each in judged(jobs, tmp_path).items():
        healthy = jobs[f"{name.split()[0]} healthy"]
        found += [f"{each.job.job}: {complaint}" for complaint in complaints_about_rules(each, healthy)]
    assert not found, "\n".join(found)
