"""`python -m tests.bench.both_forms`, from the root of the repository: the rules beside the engine.

Each job runs for 45 minutes of simulated time. The engine reads its table of operations, as the recorder of
its level wrote it; real agents read its black boxes, and promtool evaluates the rules over what they export.
Both are held against the truth. Exit status 0 whatever the result is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.simulation.job import Job, Level, simulate, slowdown_beyond_peers
from bench.simulation.recorder import EXACT
from bench.simulation.workload import Fault, Noise, Workload
from rankwatch.conventions.states import Cause
from rankwatch_alerts import Alert
from rankwatch_diagnosis.straggler.engine import diagnose
from support.alerts.rule_test import Sample
from support.diagnosis.both_forms import SCRAPE_SECONDS, lasting, samples_of_alerts

from .detection.production import production_job
from .processes import in_processes
from .result import Result, Row, as_markdown

SECONDS, STEPS = 2700.0, 60
"""Long enough for the rules to have learnt how far the ranks of the run differ."""
MOST_RANKS = 32
LEAST_COST = 0.01
"""A fault that costs less may be passed over."""
RULES, ENGINE = "rules", "engine"
_SINCE_BEGIN = f"[{SECONDS:g}s:{SCRAPE_SECONDS:g}s]"


class Culprit(NamedTuple):
    """A rank or a stage."""

    kind: str
    number: int


class Compared(NamedTuple):
    """One job, by both forms: excess time by rank or stage, as a share of the time without it."""

    level: str
    number: int
    label: str
    chip_sigma: float
    truth: Mapping[Culprit, float]
    found: Mapping[str, Mapping[Culprit, float]]
    """By form; what it named, and what that costs by it."""


def compared_job(level: Level, number: int, seed_base: int) -> Job | None:
    """Job `number` at a level; None if it is too large, or if the level has no such fault."""
    job = production_job(number, seed_base).job
    if job.shape.ranks > MOST_RANKS:
        return None
    faults = [_stretched(each, job.steps) for each in (job.fault, *job.more_faults)]
    job = replace(job, fault=faults[0], more_faults=tuple(faults[1:]), steps=STEPS)
    if level is Level.REAL:
        return job
    if any(each.unrecorded for each in job.faults):
        return None
    return replace(job, workload=Workload(), noise=Noise(), megatron=None, recorder=EXACT)


def _stretched(fault: Fault, steps: int) -> Fault:
    """The same fault in a run with more steps: it begins and ends after the same share of them."""
    factor = STEPS / steps
    lasts = None if fault.duration is None else round(fault.duration * factor)
    return replace(fault, first_step=round(fault.first_step * factor), duration=lasts)


def compare(level: Level, number: int, seed_base: int) -> Compared | None:
    """Simulate the job and ask both forms."""
    job = compared_job(level, number, seed_base)
    if job is None:
        return None
    job = lasting(job, SECONDS)
    return Compared(
        level=str(level),
        number=number,
        label=production_job(number, seed_base).label,
        chip_sigma=job.noise.rank_sigma,
        truth=dict(_truth(job)),
        found={RULES: by_rules(job), ENGINE: by_engine(job)},
    )


def _truth(job: Job) -> Iterator[tuple[Culprit, float]]:
    for fault in job.faults:
        if fault.cause is Cause.SLOW_STAGE and fault.stage is not None:
            yield Culprit("stage", fault.stage), slowdown_beyond_peers(job, [fault]) - 1.0
        if fault.cause is Cause.SLOW_RANK:
            for rank in fault.ranks:
                yield Culprit("rank", rank), slowdown_beyond_peers(job, [fault]) - 1.0


def by_engine(job: Job) -> dict[Culprit, float]:
    """What `diagnose straggler` is certain of."""
    verdict = diagnose(simulate(job).table)
    found: dict[Culprit, float] = {}
    for each in verdict.causes:
        if each.certain and each.cause in (Cause.SLOW_RANK, Cause.SLOW_STAGE):
            for kind, numbers in (("rank", each.ranks), ("stage", each.stages)):
                for number in numbers:
                    culprit = Culprit(kind, int(number))
                    found[culprit] = max(found.get(culprit, 0.0), float(each.slowdown) - 1.0)
    return found


def by_rules(job: Job) -> dict[Culprit, float]:
    """What alerts named at any time, and what the recorded series add up to over the run.

    Our own hooks see every collective, so black boxes hold the job as it was.
    """
    run = simulate(replace(job, recorder=EXACT))
    expressions = []
    for cause, record, by in _NAMED:
        fires = f'alertname="{Alert.RUN_SLOW}",cause="{cause}",alertstate="firing"'
        fired = f"count_over_time(ALERTS{{{fires}}}{_SINCE_BEGIN})"
        lost = f"sum_over_time((max by ({by}) (1 - 1 / {record})){_SINCE_BEGIN})"
        expressions.append(f"{lost} and on ({by}) (max by ({by}) ({fired}))")
    with tempfile.TemporaryDirectory() as name:
        ranks, stages = samples_of_alerts(run, job.shape, Path(name), expressions)
    evaluations = SECONDS / SCRAPE_SECONDS
    return dict(_named("rank", ranks, evaluations)) | dict(_named("stage", stages, evaluations))


_NAMED = (
    (Cause.SLOW_RANK, "rank:rankwatch_straggler:slowdown", "rank"),
    (Cause.SLOW_STAGE, "stage:rankwatch_slow_stage:slowdown", "stage"),
)


def _named(kind: str, samples: Sequence[Sample], evaluations: float) -> Iterator[tuple[Culprit, float]]:
    for each in samples:
        share = each.value / evaluations
        yield Culprit(kind, int(each.labels[kind])), 1.0 / (1.0 - share) - 1.0


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a form did on some jobs."""

    jobs: int
    costly: int
    """Ranks and stages at fault that cost enough."""
    costly_found: int
    named: int
    innocents: int
    true_excess: float
    """Of those that were found and cost enough, in jobs with one fault: what two cost is not the sum."""
    error: float
    """Of their cost, added up without signs."""

    @classmethod
    def of(cls, form: str, jobs: Sequence[Compared], kind: str) -> Score:
        """The score of a form on ranks, or on stages."""
        costly = [
            (each, who)
            for each in jobs
            for who, cost in each.truth.items()
            if cost >= LEAST_COST and who.kind == kind
        ]
        found = [(each, who) for each, who in costly if who in each.found[form]]
        alone = [(each.truth[who], each.found[form][who]) for each, who in found if len(each.truth) == 1]
        named = [who in each.truth for each in jobs for who in each.found[form] if who.kind == kind]
        return cls(
            jobs=len(jobs),
            costly=len(costly),
            costly_found=len(found),
            named=len(named),
            innocents=named.count(False),
            true_excess=sum(true for true, _ in alone),
            error=sum(abs(true - given) for true, given in alone),
        )

    def row(self, what: str) -> Row:
        """Recall, precision and cost error as a line of the table."""
        recall = f"{self.costly_found} of {self.costly} found"
        error = f"{self.error / self.true_excess:.0%}" if self.true_excess else "none"
        return Row(what, recall, f"{self.innocents} of {self.named} named are innocent; cost error {error}")


def result(jobs: Sequence[Compared]) -> Result:
    """The table: both forms by level, the real level also by how far chips differ."""
    rows = []
    for title, part in _parts(jobs):
        for form in (RULES, ENGINE):
            for kind in ("rank", "stage"):
                rows.append(Score.of(form, part, kind).row(f"{title}, {len(part)} jobs: {form}, {kind}s"))
    return Result(
        title="Rules and engine",
        rows=tuple(rows),
        notes=(
            f"Found: of the ranks and stages at fault that cost at least {LEAST_COST:.0%}. Cost error: of"
            " those found in jobs with one fault, all differences over the true excess, each added up.",
        ),
    )


def _parts(jobs: Sequence[Compared]) -> Iterator[tuple[str, list[Compared]]]:
    for level in Level:
        yield f"{level} level", [each for each in jobs if each.level == level]
    real = [each for each in jobs if each.level == Level.REAL]
    for sigma in sorted({each.chip_sigma for each in real}):
        title = f"real level, chips differ by {100 * sigma:.1f} %"
        yield title, [each for each in real if each.chip_sigma == sigma]


def main(arguments: Sequence[str]) -> int:
    """Compare so many jobs and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.both_forms", description=__doc__)
    parser.add_argument("--jobs", type=int, default=50, help="to choose from, at each level (default 50)")
    parser.add_argument("--seed-base", type=int, default=1, metavar="S", help="other jobs (default 1)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="default 2")
    given = parser.parse_args(arguments)
    chosen = [(level, number, given.seed_base) for level in Level for number in range(given.jobs)]
    jobs = [each for each in in_processes(compare, chosen, given.processes) if each is not None]
    print(as_markdown(result(jobs)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
