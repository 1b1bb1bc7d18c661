"""The rules on jobs of four to sixteen ranks on simulated GPUs, over what a real agent exports of them.

A job takes a second. For the rules it goes on for 45 minutes as it was. A rank whose compute is 10 % slower
is a little less than 10 % behind its peers. That is enough once the run has shown how little its ranks
differ, and not before.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import pytest

from rankwatch.conventions.metrics import OF_RUNNING_RANKS, Kind
from rankwatch.conventions.states import Cause
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.training.collector import RanksCollector
from support.alerts.rule_test import Sample, ask
from support.device.jobs import (
    CAUSES,
    LEAST_SLOWDOWN,
    PHASES,
    UNEVEN,
    Fault,
    Job,
    Result,
    Slow,
    residual_complaints,
)
from support.device.programs import PROGRAMS
from support.diagnosis.both_forms import (
    FIRING,
    PHASES_OF_NAMED,
    RULES,
    SCRAPE_SECONDS,
    Outcome,
    outcome_of_alerts,
)

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


YOUNG, OLD = 11, 45
"""Minutes: too short to have learnt the spread of the run, and long enough."""
_EXPRESSIONS = {
    "old": FIRING,
    "young": f"{FIRING} offset {OLD - YOUNG}m",
    "phases": PHASES_OF_NAMED,
    "residuals": "rank:rankwatch_step_local_seconds:residual",
    "slowdowns": "rank:rankwatch_straggler:slowdown",
    "thresholds": "run:rankwatch_straggler_residual:threshold",
    "steps": "run:rankwatch_step_seconds:mean",
}
_READ = frozenset(re.findall(r"\brankwatch_\w+", json.dumps(RULES)))
_SETTLED_SECONDS = 1.0
_COST_SHARE, _UNEVEN_COST_SHARE = 0.02, 0.05
"""Part of the step by which the price of a slow rank may differ from the truth. Where ranks have uneven work,
another one may be last at each collective, which figures of whole steps do not show."""


class Exported(Result):
    """A job whose boxes a real agent has read, once all ranks have done their first steps and at the end."""

    steps_on_host = 0
    series: Sequence[Series]
    of_living: Sequence[Series]
    """What the agent exported after the first steps, had the ranks been processes that live."""
    seconds: float
    """How long all of it took."""

    def _run(self) -> None:
        self._now = began = self._end()
        self._agent = RanksCollector(
            directory=self.directory, monotonic=lambda: self._now, wall=lambda: self._now
        )
        super()._run()
        self.seconds = self._end() - began
        self._now = self._end() + _SETTLED_SECONDS
        self.series = self._agent.collect().series

    def _warmed(self, now: float) -> None:
        super()._warmed(now)
        if len(self._warm) == len(self.ranks):
            self._now = self._end()
            with patch("rankwatch_agent.training.series.ranks.ENDED_STATES", frozenset()):
                self.of_living = self._agent.collect().series


class Judged:
    """A job, and the samples that the rules have of it, by the name of the expression."""

    def __init__(self, job: Exported, samples: Mapping[str, Sequence[Sample]]) -> None:
        self.job = job
        self._samples = samples

    @cached_property
    def outcome(self) -> Outcome:
        """What the alerts conclude once the run is old."""
        old, phases = ([each.labels for each in self._samples[name]] for name in ("old", "phases"))
        return outcome_of_alerts(old, phases)

    def named(self, age: str) -> set[int]:
        """Ranks that an alert names while the run is `young` or `old`."""
        alerts = [each.labels for each in self._samples[age]]
        return {int(each["rank"]) for each in alerts if each.get("cause") == Cause.SLOW_RANK}

    def by_rank(self, name: str) -> dict[int, float]:
        """`residuals` or `slowdowns`."""
        return {int(each.labels["rank"]): each.value for each in self._samples[name]}

    def of_run(self, name: str) -> float | None:
        """The threshold of residuals (`thresholds`), or the time of a step (`steps`)."""
        values = [each.value for each in self._samples[name]]
        return values[0] if values else None


def judged(jobs: Mapping[str, Exported], directory: Path) -> dict[str, Judged]:
    """Evaluate the rules over all jobs, each as a cluster of its own; files are written to the directory.

    Gauges stay as the agent exports them, and counters grow as they did.
    """
    scrapes = OLD * 60 // int(SCRAPE_SECONDS)
    series = [each for name, job in jobs.items() for each in _held(name, job, scrapes)]
    tests = [{"expr": each, "eval_time": f"{OLD}m", "exp_samples": []} for each in _EXPRESSIONS.values()]
    interval = f"{SCRAPE_SECONDS:g}s"
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    answers = ask(case, RULES, interval, directory, every_rule=True)
    found: dict[str, dict[str, list[Sample]]] = {name: {each: [] for each in _EXPRESSIONS} for name in jobs}
    for expression, samples in zip(_EXPRESSIONS, answers, strict=True):
        for sample in samples:
            found[sample.labels["cluster"]][expression].append(sample)
    return {name: Judged(job, found[name]) for name, job in jobs.items()}


def _held(cluster: str, job: Exported, scrapes: int) -> Iterator[dict[str, str]]:
    for each in job.series:
        if each.metric.name not in _READ:
            continue
        labels = {**dict(zip(each.metric.labels, each.labels, strict=True)), "cluster": cluster, "node": "n"}
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        growth = each.value / job.seconds * SCRAPE_SECONDS if each.metric.kind is Kind.COUNTER else 0.0
        values = f"{each.value:.12f}+{growth:.12f}x{scrapes}"
        yield {"series": f"{each.metric.name}{{{text}}}", "values": values}


def complaints_about_rules(judged: Judged, healthy: Exported) -> Iterator[str]:
    """What is wrong with what the rules say of a job, in words."""
    job, outcome = judged.job, judged.outcome
    fault, blamed = job.job.fault, job.job.blamed
    yield from (
        f"rank {each} is named" for each in judged.named("young") | judged.named("old") if each != blamed
    )
    if not job.job.of.sees_waits:
        if judged.by_rank("residuals"):
            yield "there are residuals without local times"
        return
    yield from residual_complaints(job, blamed, judged.by_rank("residuals"))
    if blamed is None:
        allowed = CAUSES.get(fault.what, ()) if fault is not None else ()
        if outcome.cause not in (Cause.NONE, *allowed):
            yield f"the cause is {outcome.cause}"
        return
    assert fault is not None
    truth = job.step_seconds / healthy.step_seconds
    if not outcome.ranks and not _must_be_named(judged, blamed, truth):
        return
    if outcome != Outcome(Cause.SLOW_RANK, PHASES[fault.what], ranks=(blamed,)):
        yield f"{outcome} instead of slow rank {blamed}"
    price = judged.by_rank("slowdowns").get(blamed, 1.0)
    allowed_share = _UNEVEN_COST_SHARE if job.job.program in UNEVEN else _COST_SHARE
    if abs(price / truth - 1.0) > allowed_share:
        yield f"the price is {price:.3f}, truly {truth:.3f}"


def _must_be_named(judged: Judged, blamed: int, truth: float) -> bool:
    """A rank above the threshold that costs clearly more than the least share of the step."""
    threshold = judged.of_run("thresholds")
    assert threshold is not None
    return truth > 2 * LEAST_SLOWDOWN - 1 and judged.by_rank("residuals")[blamed] > threshold
